"""Snapshots that cannot be taken now, and unfinished ones of another process."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from motet.broker.driver.service import open_broker
from motet.broker.folder import compaction
from motet.broker.folder.examination import examine
from motet.broker.folder.recovery import close_off, open_folder, sweep
from motet.broker.overlay.topology import Wiring
from motet.client.client import connect
from motet.errors import DiskFailed
from motet.model import OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.routing.messages import Unsubscribe
from motet.runtime.log import files, read_sealed, write_sealed
from tests.waiting import PATIENCE_S


async def test_without_descriptors_the_broker_goes_on_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = asyncio.Semaphore(0)

    def no_descriptors(*_: Any, **__: Any) -> None:
        tried.release()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(files, "Popen", no_descriptors)
    monkeypatch.setattr(compaction, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(compaction, "TRY_AGAIN_S", 0.001)
    where = Wiring("inproc://no-descriptors")
    driver = open_broker(BrokerConfig("B1"), where, tmp_path, snapshot_bytes=1)
    await driver.start()
    try:
        async with connect(where.listen, client_id="x") as client, asyncio.timeout(PATIENCE_S):
            await client.subscribe("x = 1")
            await tried.acquire()
            await tried.acquire()
            await client.subscribe("x = 2")
        assert driver.failure is None
        assert "no snapshot was taken: [Errno 24]" in caplog.text
    finally:
        await driver.stop()


class Writing:
    """A process that writes a snapshot, and does not get on until it is told to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun, self._go = Event(), Event()
        self.problem: Exception | None = None
        self._thread = Thread(target=self._run)
        self._thread.start()
        assert self._begun.wait(PATIENCE_S)

    def _parts(self) -> Any:
        yield 2, bytes(2 << 20)
        self._begun.set()
        assert self._go.wait(PATIENCE_S)
        yield 2, b"the rest"

    def _run(self) -> None:
        try:
            write_sealed(self._path, purpose="snapshot", version=1, first=5, payloads=self._parts())
        except DiskFailed as problem:
            self.problem = problem

    def finish(self) -> None:
        self._go.set()
        self._thread.join(PATIENCE_S)


def test_a_process_that_outlived_its_broker_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / f"{5:020d}.snapshot"
    orphan = Writing(path)
    sweep(tmp_path)
    second = Writing(path)
    orphan.finish()
    assert not path.exists(), "neither its own, which is gone, nor that of the other one"
    assert isinstance(orphan.problem, DiskFailed)
    second.finish()
    assert second.problem is None
    assert len(list(read_sealed(path, purpose="snapshot"))) == 2
    assert list(tmp_path.iterdir()) == [path]


async def test_the_next_snapshot_removes_unfinished_ones(tmp_path: Path) -> None:
    core, journal, _ = open_folder(BrokerConfig("B1"), tmp_path)
    unfinished = tmp_path / f"{1:020d}.snapshot.4711-1.new"
    unfinished.write_bytes(b"half a snapshot")
    await compaction.Compaction(tmp_path, journal, core.acknowledged).take()
    assert not unfinished.exists()
    await journal.close()
    unfinished.write_bytes(b"half a snapshot")
    close_off(tmp_path)
    assert not unfinished.exists()


async def test_invalid_messages_of_neighbours_do_not_make_a_folder_damaged(tmp_path: Path) -> None:
    config = BrokerConfig("B1", ("B2",))
    core, journal, _ = open_folder(config, tmp_path)
    senseless = Unsubscribe(OpId("x", "y-1.1", 1), None)
    for frame in (LinkHello(PROTOCOL_VERSION, "B2", 5, 0, 0), Control(1, (senseless,))):
        journal.append(core.step(Received(1, frame), core.durable.now).persist)
    assert core.durable.routing.ignored == 1
    await journal.close()
    assert examine(tmp_path).problems == []
