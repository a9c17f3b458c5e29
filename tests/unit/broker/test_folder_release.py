"""A broker that fails, or does not start, releases its folder; another broker may use it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import motet
from motet.broker.driver.service import open_broker
from motet.broker.folder.recovery import JOURNAL, open_folder
from motet.broker.overlay.topology import Wiring
from motet.errors import AddressError, InvariantError
from motet.protocol.config import BrokerConfig
from motet.runtime.log.folder import CLOSED
from tests.waiting import PATIENCE_S


async def test_a_broker_that_failed_can_be_started_again_in_the_same_process(
    tmp_path: Path,
) -> None:
    async with motet.local(brokers=1, data=tmp_path) as overlay:
        async with overlay.connect("alice") as alice:
            await alice.subscribe("x = 1")
        driver = overlay.drivers.pop("B1")
        driver._fail(InvariantError("told to"))
        with pytest.raises(InvariantError, match="told to"):
            await asyncio.wait_for(driver.finished(), PATIENCE_S)
        assert not (tmp_path / "B1" / JOURNAL / CLOSED).exists(), "it claims nothing"
        await overlay.start_broker("B1")


async def test_a_broker_that_cannot_listen_releases_its_folder(tmp_path: Path) -> None:
    config = BrokerConfig("B1")
    first = open_broker(config, Wiring("inproc://taken"), tmp_path / "first")
    await first.start()
    second = open_broker(config, Wiring("inproc://taken"), tmp_path / "second")
    with pytest.raises(AddressError):
        await second.start()
    third = open_folder(config, tmp_path / "second")
    await third.journal.close()
    await first.stop()
