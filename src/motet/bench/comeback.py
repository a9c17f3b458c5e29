"""A broker's folder with very many subscriptions: filled, opened again, and snapshot on the way.

    python -m motet.bench.comeback fill FOLDER SUBSCRIPTIONS
    python -m motet.bench.comeback load FOLDER
    python -m motet.bench.comeback pause FOLDER SECONDS

Each in a process of its own, so that the memory of one does not slow down the next. They print
one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from motet.bench import sample
from motet.broker.compaction import Compaction
from motet.broker.config import BrokerConfig
from motet.broker.driver import BrokerDriver
from motet.broker.recovery import open_folder, read_durable
from motet.protocol.contract import Input, Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.session.messages import ClientHello, SubscribeRequest
from motet.runtime.clock import SteadyClock
from motet.runtime.log import FileLog
from motet.runtime.loop import run, settle_memory
from motet.runtime.wiring import Wiring

NAME = "B1"
PER_CLIENT = 1000
TICK_S = 0.001
LEASE_S = 3600.0
"""Nobody is connected, and no session must end meanwhile."""


def fill(folder: Path, subscriptions: int) -> dict[str, float]:
    """A broker whose clients have made so many subscriptions; its journal has them all."""
    core, journal, _ = open_folder(BrokerConfig(NAME), folder)

    def give(given: Input) -> None:
        output = core.step(given, core.durable.now)
        journal.append(output.persist)

    wanted = iter(sample.subscriptions(subscriptions))
    for connection in count(1):
        give(Received(connection, ClientHello(PROTOCOL_VERSION, f"bench-{connection}")))
        for sequence, each in zip(range(1, PER_CLIENT + 1), wanted, strict=False):
            give(Received(connection, SubscribeRequest(sequence, each)))
        if connection * PER_CLIENT >= subscriptions:
            break
    assert isinstance(journal.log, FileLog)
    journal.log.sync()
    journal.log.shut()
    return {"subscriptions": len(core.durable.routing.state.subscriptions)}


def load(folder: Path) -> dict[str, float]:
    """The state that a folder holds, as a broker that starts there rebuilds it."""
    began = time.perf_counter()
    durable, position = read_durable(folder)
    return {
        "seconds": time.perf_counter() - began,
        "facts": position,
        "subscriptions": len(durable.routing.state.subscriptions),
    }


async def pause(folder: Path, seconds: float) -> dict[str, float]:
    """The longest time for which the loop of a broker does not get to anything: for so long while
    nothing happens, and while a snapshot is taken."""
    core, journal, _ = open_folder(BrokerConfig(NAME, lease_s=LEASE_S), folder)
    clock = SteadyClock(core.durable.now)
    driver = BrokerDriver(core, Wiring("motet://127.0.0.1:0", {}), clock=clock, journal=journal)
    await driver.start()
    settle_memory()
    watch = Watch()
    await asyncio.sleep(seconds)
    idle = watch.longest()
    began = time.perf_counter()
    await Compaction(folder, journal, core.acknowledged).take()
    took_s, taking = time.perf_counter() - began, watch.longest()
    watch.end()
    await driver.stop()
    return {
        "idle_ms": idle.pause_s * 1e3,
        "pause_ms": taking.pause_s * 1e3,
        "work_ms": taking.work_s * 1e3,
        "took_s": took_s,
    }


@dataclass
class Longest:
    pause_s: float = 0.0
    """Between two looks, beyond the tick itself; part of it may be that others had the CPU."""
    work_s: float = 0.0
    """CPU time that the thread of the loop used between two looks."""


class Watch:
    """Looks at the clock as often as the loop lets it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last = time.perf_counter()
        self._used = time.thread_time()
        self._longest = Longest()
        self._next = self._loop.call_later(TICK_S, self._look)

    def longest(self) -> Longest:
        """Since it was asked last."""
        longest, self._longest = self._longest, Longest()
        return longest

    def end(self) -> None:
        self._next.cancel()

    def _look(self) -> None:
        now, used, longest = time.perf_counter(), time.thread_time(), self._longest
        longest.pause_s = max(longest.pause_s, now - self._last - TICK_S)
        longest.work_s = max(longest.work_s, used - self._used)
        self._last, self._used = now, used
        self._next = self._loop.call_later(TICK_S, self._look)


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["fill", folder, subscriptions]:
            figures = fill(Path(folder), int(subscriptions))
        case ["load", folder]:
            figures = load(Path(folder))
        case ["pause", folder, seconds]:
            figures = run(pause(Path(folder), float(seconds)))
        case _:
            sys.exit(__doc__)
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
