"""A cell loses a process: how long do its subscribers wait, and do they miss anything?

    p1 – {b1, b2} – s1, s2

One publisher at p1, a subscriber at each of s1 and s2. While events flow, members of the cell in
the middle are killed, or stopped and let go on, its head and its mate in turn. Each has to be
back, with all links up, before the next one falls.

    python -m motet.bench.failover [EVENTS_PER_S]
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from motet.bench.figures import Figure, Progress
from motet.broker.topology import BrokerPlace, Topology
from motet.cli.looking import ask_all, missing_links
from motet.cli.supervisor import Child
from motet.client.client import Client
from motet.client.connecting import connect
from motet.runtime.loop import run

HEARTBEAT_S = 0.2
"""A process that stands still is noticed after three beats."""
SPACE = "step > 0"
SETTLE_S = 0.5
"""Quiet flow before and after each fault."""
BOUND_S = 30.0
POLL_S = 0.02

MOST_GAP_MS = 1000.0
"""What we promise."""

Fault = tuple[str, str]
"""What is done, and to whom."""
KILLS: tuple[Fault, ...] = (("kill", "b1"), ("kill", "b2"))
STALLS: tuple[Fault, ...] = (("stall", "b1"), ("stall", "b2"))
WORDS = {"kill": "SIGKILL of", "stall": "SIGSTOP of"}
MEMBERS = {"b1": "head", "b2": "mate"}


class Ear:
    """One subscriber: what it got, and the longest time without anything."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps: list[int] = []
        self.longest_s = 0.0
        self._last = time.perf_counter()

    def hear(self, event: Any) -> None:
        now = time.perf_counter()
        self.longest_s = max(self.longest_s, now - self._last)
        self._last = now
        self.steps.append(event["step"])

    def begin(self) -> None:
        """From here on the longest gap counts anew."""
        self.longest_s = 0.0


class Stage:
    """The five processes, and who is connected to them."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.topology = _topology()
        file = folder / "topology.toml"
        file.write_text(self.topology.to_toml())
        self.children = {
            place.name: Child(place, file, folder / f"{place.name}.log", print)
            for place in self.topology.processes
        }
        self.addresses = {place.name: place.listen for place in self.topology.processes}

    async def start(self) -> None:
        for child in self.children.values():
            self._stack.push_async_callback(child.stop)
        await asyncio.gather(*(child.start() for child in self.children.values()))
        await self.whole()

    async def whole(self) -> None:
        """All links are up, those of the bundle, too."""
        async with asyncio.timeout(BOUND_S):
            while missing_links(await ask_all(self.addresses)):
                await asyncio.sleep(POLL_S)

    async def client(self, broker: str, name: str) -> Client:
        return await self._stack.enter_async_context(
            connect(self.addresses[broker], client_id=name)
        )

    async def strike(self, fault: Fault, stall_s: float) -> None:
        """Do it, wait until everything is whole again."""
        what, name = fault
        child = self.children[name]
        if what == "kill":
            os.kill(child.pid, signal.SIGKILL)
            await child.ended()
            await asyncio.sleep(2 * SETTLE_S)
            await child.start()
        else:
            os.kill(child.pid, signal.SIGSTOP)
            await asyncio.sleep(stall_s)
            os.kill(child.pid, signal.SIGCONT)
        await self.whole()


def _topology() -> Topology:
    at = _free_addresses(5)
    places = (
        BrokerPlace("p1", at[0]),
        BrokerPlace("b1", at[1], ("p1",), mates=(("b2", at[2]),)),
        BrokerPlace("s1", at[3], ("b1",)),
        BrokerPlace("s2", at[4], ("b1",)),
    )
    return Topology("failover", places, heartbeat_s=HEARTBEAT_S)


def _free_addresses(count: int) -> list[str]:
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    found = [f"motet://127.0.0.1:{each.getsockname()[1]}" for each in held]
    for each in held:
        each.close()
    return found


async def measure(
    faults: Sequence[Fault] = KILLS + STALLS, *, per_s: int = 1000, stall_s: float = 2.5
) -> dict[str, Any]:
    """Longest gaps per fault, and what was lost, doubled or out of order at any subscriber."""
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            stage = Stage(Path(folder), stack)
            await stage.start()
            publisher = await stage.client("p1", "publisher")
            await publisher.advertise(SPACE)
            ears = [Ear("s1"), Ear("s2")]
            for ear in ears:
                subscriber = await stage.client(ear.name, f"at-{ear.name}")
                await subscriber.subscribe(SPACE, callback=ear.hear)
            stop = asyncio.Event()
            publishing = asyncio.ensure_future(_publish(publisher, per_s, stop))
            try:
                gaps = await _strike_all(stage, ears, faults, stall_s)
            finally:
                stop.set()
                published = await publishing
            await _all_heard(ears, published)
    return {"events": published, "per_s": per_s, "gaps": gaps} | _verdict(ears, published)


async def _strike_all(
    stage: Stage, ears: list[Ear], faults: Sequence[Fault], stall_s: float
) -> list[dict[str, Any]]:
    gaps = []
    for fault in faults:
        for ear in ears:
            ear.begin()
        await asyncio.sleep(SETTLE_S)
        before_s = max(ear.longest_s for ear in ears)
        for ear in ears:
            ear.begin()
        await stage.strike(fault, stall_s)
        await asyncio.sleep(SETTLE_S)
        longest_s = max(ear.longest_s for ear in ears)
        gaps.append({"fault": fault[0], "process": fault[1], "gap_s": round(longest_s, 4)})
        gaps[-1]["usual_s"] = round(before_s, 4)
    return gaps


async def _publish(client: Client, per_s: int, stop: asyncio.Event) -> int:
    """At an even pace; returns how many there were."""
    step, began = 0, time.perf_counter()
    while not stop.is_set():
        due = int((time.perf_counter() - began) * per_s)
        for step in range(step + 1, due + 1):  # noqa: B020 - counts on
            await client.publish({"step": step})
        await asyncio.sleep(5 / per_s)
    await client.flush(timeout=BOUND_S)
    return step


async def _all_heard(ears: list[Ear], published: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while any(len(ear.steps) < published for ear in ears):
            await asyncio.sleep(POLL_S)


def _verdict(ears: list[Ear], published: int) -> dict[str, int]:
    wanted = set(range(1, published + 1))
    return {
        "lost": sum(len(wanted - set(ear.steps)) for ear in ears),
        "doubled": sum(len(ear.steps) - len(set(ear.steps)) for ear in ears),
        "disordered": sum(
            a >= b for ear in ears for a, b in zip(ear.steps, ear.steps[1:], strict=False)
        ),
    }


def figures(short: bool, progress: Progress) -> list[Figure]:
    """The same as figures beside their goals; the floor of a gap is the longest one before."""
    progress("processes of a cell are killed and stopped while events flow")
    found = run(measure(KILLS if short else KILLS + STALLS))
    wrong = found["lost"] + found["doubled"] + found["disordered"]
    return [
        Figure(
            f"longest silence at a subscriber, {WORDS[gap['fault']]} the {MEMBERS[gap['process']]} "
            "of a cell of two (floor: before)",
            gap["gap_s"] * 1e3,
            "ms",
            gap["usual_s"] * 1e3,
            MOST_GAP_MS if gap["fault"] == "kill" else None,
            counts=wrong == 0,
        )
        for gap in found["gaps"]
    ]


if __name__ == "__main__":
    rate = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(json.dumps(run(measure(per_s=rate))), flush=True)
