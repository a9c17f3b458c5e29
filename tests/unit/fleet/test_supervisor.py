"""Brokers that take long to start, or do not start, under `motet up`."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from motet.broker.overlay.topology import Topology
from motet.client.channel import ask
from motet.errors import MotetError, UnavailableError
from motet.fleet import process as room
from motet.fleet.process import BrokerProcess, StartFailed, free_addresses
from motet.fleet.supervisor import OverlayChange, Supervisor
from tests.waiting import PATIENCE_S, eventually

SLOW = f"""#!{sys.executable}
import json, os, sys, time
print("B1 reads its journal", file=sys.stderr, flush=True)
while not os.path.exists({{go!r}}):
    time.sleep(0.01)
print(json.dumps({{{{"broker": "B1"}}}}), flush=True)
sys.stdin.read()
"""
"""The program of a broker that recovers for as long as it is not told to go on."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, where each broker is the slow program; the file `go` lets it listen."""
    program = tmp_path / "slow"
    program.write_text(SLOW.format(go=str(tmp_path / "go")))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(room, "SLOW_START_S", 0.05)
    return tmp_path


async def test_a_broker_with_a_long_recovery_is_reported_and_not_stopped(place: Path) -> None:
    told: list[str] = []
    said = asyncio.Semaphore(0)

    def notice(text: str) -> None:
        told.append(text)
        said.release()

    child = BrokerProcess("B1", (), place)
    starting = asyncio.create_task(child.start(None, notice))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not told or "B1 reads its journal" not in told[-1]:
                await said.acquire()
            pid = child.pid
            (place / "go").touch()
            await starting
        assert child.pid == pid, "it was never started again"
        assert told[0].startswith(f"B1 (pid {pid}) does not listen after 0.05 s")
    finally:
        await child.stop()


async def test_a_process_that_cannot_be_made_is_a_failure_that_is_tried_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(room, "Popen", refuse)
    with pytest.raises(StartFailed, match=r"B1 cannot be started: .*Too many open files"):
        await BrokerProcess("B1", (), place).start()


class Scene(Supervisor):
    """Three brokers of which none is a process; what happens to them is written down."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.told: list[str] = []
        self.done: list[str] = []
        self.failing: set[str] = set()
        super().__init__(Topology.line(3, **settings), folder, self.told.append)
        self.fleet.write_topology()
        monkeypatch.setattr(
            BrokerProcess, "start", lambda process, *_: self._do("start", process.name)
        )
        monkeypatch.setattr(BrokerProcess, "stop", lambda process: self._do("stop", process.name))
        monkeypatch.setattr(BrokerProcess, "ended", lambda _: asyncio.Event().wait())

    async def _do(self, what: str, name: str) -> None:
        self.done.append(f"{what} {name}")
        if what == "start" and name in self.failing:
            raise UnavailableError(f"{name}: told to fail")

    async def _until_links_up(self) -> None:
        self.done.append("links up")

    async def _until_quiet(self, addresses: Any) -> None:
        assert addresses
        self.done.append("quiet")

    async def _inform(self, names: Any) -> None:
        self.done.append(f"inform {' '.join(names)}")


@pytest.mark.parametrize(("durability", "waits"), [("fsync", "links up"), ("volatile", "quiet")])
async def test_a_rolling_restart_waits_only_as_durability_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, waits: str
) -> None:
    scene = Scene(tmp_path, monkeypatch, durability=durability)
    await scene.restart_each()
    assert scene.done[:3] == ["stop B1", "start B1", waits]
    assert scene.done.count(waits) == 3
    await scene.stop()


async def test_a_broker_that_fails_to_restart_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch)
    scene.failing = {"B3"}
    await scene._go_back(scene.fleet.topology, OverlayChange(("B3", "B2"), (), (), ("B1",)))
    assert scene.done == ["start B3", "start B2", "inform B1", "links up"]
    assert scene.told == ["B3 is not back yet: B3: told to fail"]
    assert set(scene._watchers) == {"B3", "B2"}, "both are watched, so it is tried again"
    await scene.stop()


# ── real brokers ─────────────────────────────────────────────────────────────────────────


def line_of_three() -> Topology:
    topology = Topology.line(3)
    places = zip(topology.brokers, free_addresses(3), strict=True)
    return replace(topology, brokers=tuple(replace(p, listen=address) for p, address in places))


async def test_a_broker_that_dies_before_all_links_are_up_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever waits for the links alone waits longer than this test.
    monkeypatch.setattr("motet.fleet.supervisor.LINKS_LIMIT_S", 10 * PATIENCE_S)
    told: list[str] = []
    overlay = Supervisor(line_of_three(), tmp_path, told.append)
    await overlay.start()
    try:
        one, two, three = overlay.fleet.processes.values()
        three.pause()  # so not all links come up
        for starts in (2, 3, 4):
            before = {each.name: each.pid for each in (one, two)}
            for each in (one, two):
                each.kill()
            for each in (one, two):
                await eventually(lambda each=each, starts=starts: each.starts == starts)
                await eventually(partial(listens, overlay.fleet.addresses[each.name]))
                death = f"{each.name} (pid {before[each.name]}) died of SIGKILL; restarting in"
                assert sum(text.startswith(death) for text in told) == 1
        assert not any("is back" in text for text in told), "not all links were up"
        three.resume()
        for each in (one, two):
            back = f"{each.name} is back (pid {each.pid}), all links are up"
            await eventually(lambda back=back: back in told)
        assert three.starts == 1
    finally:
        three.resume()
        await overlay.stop()


async def listens(address: str) -> bool:
    with suppress(MotetError):
        await ask(address)
        return True
    return False
