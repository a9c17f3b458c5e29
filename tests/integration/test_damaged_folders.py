"""What can be wrong with the folder of a broker: it says so, names the place, and changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import motet
from motet.broker.records import MACHINE_VERSION
from motet.broker.recovery import JOURNAL, listing
from motet.cli.main import run
from motet.errors import StaleState
from motet.runtime.log import FileLog
from tests.integration.durable_broker import (
    NEXT_RELEASE,
    SOON_S,
    DurableBroker,
    eventually,
    flip,
)

WANTED = [f"x = {number}" for number in range(40)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that was killed twice; its journal has two segments."""
    directory = tmp_path_factory.mktemp("killed")

    async def live() -> None:
        broker = DurableBroker(directory)
        for texts in (WANTED[:20], WANTED[20:]):
            async with broker:
                client = await motet.connect(broker.address, client_id="alice")
                await asyncio.gather(*(client.subscribe(text) for text in WANTED[:20]))
                await asyncio.gather(*(client.subscribe(text) for text in texts))
                broker.kill()
                await client.close()
            if texts is WANTED[20:]:
                return
            files = FileLog.open(broker.data / JOURNAL, purpose=JOURNAL, version=MACHINE_VERSION)
            files.roll()
            files.shut()

    asyncio.run(live())
    return directory / "B1"


@pytest.fixture
def broker(killed: Path, tmp_path: Path) -> DurableBroker:
    shutil.copytree(killed, tmp_path / "B1")
    return DurableBroker(tmp_path)


def first(broker: DurableBroker) -> Path:
    return broker.segments[0]


def last(broker: DurableBroker) -> Path:
    return broker.segments[-1]


Damage = Callable[[DurableBroker], None]

DAMAGES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "a bit in the middle": (
        lambda b: flip(first(b), first(b).stat().st_size // 2),
        ("00000000000000000001.log: record ", " at offset ", "is broken"),
    ),
    "a bit in the last segment": (
        lambda b: flip(last(b), last(b).stat().st_size // 2),
        ("{last}: record ", " at offset ", "is broken"),
    ),
    "a bit in the last record": (
        lambda b: flip(last(b), -3),
        ("{last}: record ", " at offset ", "is broken"),
    ),
    "a bit in a header": (lambda b: flip(last(b), 9), ("{last}", "header")),
    "a segment cut short": (
        lambda b: os.truncate(first(b), first(b).stat().st_size * 2 // 3),
        ("00000000000000000001.log", "offset"),
    ),
    "the first segment gone": (
        lambda b: first(b).unlink(),
        ("the segment with records 1 to ", "is missing"),
    ),
    "the last segment gone": (
        lambda b: last(b).unlink(),
        ("the segment that begins with record ", "is missing"),
    ),
    "all segments gone": (
        lambda b: [path.unlink() for path in b.segments] and None,
        ("all segments are missing",),
    ),
    "a segment under another name": (
        lambda b: last(b).rename(last(b).with_name("00000000000000099999.log")) and None,
        ("00000000000000099999.log", "renamed"),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_named_with_the_way_out_and_left_as_it_is(
    broker: DurableBroker, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    harm, words = DAMAGES[damage]
    words = tuple(word.format(last=last(broker)) for word in words)
    harm(broker)
    before = listing(broker.data)
    status, said = await broker.refused()
    print(said)
    assert run(["journal", "verify", str(broker.data)]) == 1
    print(capsys.readouterr().err)
