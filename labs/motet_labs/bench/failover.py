"""A cell loses a process: how long do its subscribers wait, and do they miss anything?

    p1 – {b1, b2} – s1, s2

One publisher at p1, a subscriber at each of s1 and s2. While events flow, the head and the mate of
the cell in the middle are killed, or stopped and continued, in turn. Each must be back, with all
links up, before the next fault.

    python -m motet_labs.bench.failover [EVENTS_PER_S]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.fleet.fleet import Fleet
from motet.fleet.process import free_addresses
from motet.runtime.loop import run
from motet_labs.experiments.faults import PacedTraffic
from motet_labs.figures import Figure, Progress, Size, silence_s

HEARTBEAT_S = 0.2
"""A stopped process is noticed after three heartbeats."""
SETTLE_S = 0.5
"""Undisturbed flow before and after each fault."""
BOUND_S = 30.0
EVENT_BYTES = 60
MOST_GAP_MS = 1000.0
"""The goal."""

Fault = tuple[str, str]
"""What is done, and to which process."""
KILLS: tuple[Fault, ...] = (("kill", "b1"), ("kill", "b2"))
STALLS: tuple[Fault, ...] = (("stall", "b1"), ("stall", "b2"))
FAULTS = {Size.LEAST: KILLS[:1], Size.SHORT: KILLS, Size.LONG: KILLS + STALLS}
WORDS = {"kill": "SIGKILL of", "stall": "SIGSTOP of", "b1": "head", "b2": "mate"}


async def measure(
    faults: Sequence[Fault] = KILLS + STALLS, *, per_s: int = 1000, stall_s: float = 2.5
) -> dict[str, Any]:
    """Longest gaps per fault, and events lost, duplicated or out of order at any subscriber."""
    at = free_addresses(5)
    places = (
        BrokerPlace("p1", at[0]),
        BrokerPlace("b1", at[1], ("p1",), mates=(("b2", at[2]),)),
        BrokerPlace("s1", at[3], ("b1",)),
        BrokerPlace("s2", at[4], ("b1",)),
    )
    topology = Topology("failover", places, heartbeat_s=HEARTBEAT_S)
    traffic = PacedTraffic(1, per_s, EVENT_BYTES)
    with TemporaryDirectory() as folder:
        async with (
            Fleet(topology, Path(folder)) as fleet,
            traffic.connected(at[0], {"s1": at[3], "s2": at[4]}),
        ):
            traffic.begin()
            gaps = [await _gap(fleet, traffic, fault, stall_s) for fault in faults]
            await traffic.stop()
            await traffic.settle(BOUND_S)
    account = traffic.account()._asdict()
    wrong = {name: account[name] for name in ("lost", "doubled", "disordered")}
    return {"events": account["published"], "per_s": per_s, "gaps": gaps} | wrong


async def _gap(fleet: Fleet, traffic: PacedTraffic, fault: Fault, stall_s: float) -> dict[str, Any]:
    """The longest silence at a subscriber before a fault, and from the fault until recovery."""

    def longest_s(since: float) -> float:
        arrivals = traffic.arrivals.values()
        times = ([note.sent + note.latency_s for note in notes] for notes in arrivals)
        return round(max(silence_s(each, since) for each in times), 4)

    began = time.monotonic()
    await asyncio.sleep(SETTLE_S)
    usual_s, struck = longest_s(began), time.monotonic()
    await _strike(fleet, fault, stall_s)
    await asyncio.sleep(SETTLE_S)
    what, process = fault
    return {"fault": what, "process": process, "gap_s": longest_s(struck), "usual_s": usual_s}


async def _strike(fleet: Fleet, fault: Fault, stall_s: float) -> None:
    """Inject the fault, and wait until all links are up again, including those within the cell."""
    what, name = fault
    process = fleet.processes[name]
    if what == "kill":
        process.kill()
        await process.ended()
        await asyncio.sleep(2 * SETTLE_S)
        await process.start()
    else:
        process.pause()
        await asyncio.sleep(stall_s)
        process.resume()
    await fleet.until_links_up()


def figures(size: Size, progress: Progress) -> list[Figure]:
    """The results as figures; the floor of a gap is the longest one before the fault."""
    progress("processes of a cell are killed and stopped while events flow")
    found = run(measure(FAULTS[size]))
    wrong = found["lost"] + found["doubled"] + found["disordered"]
    return [
        Figure(
            f"longest silence at a subscriber, {WORDS[gap['fault']]} the {WORDS[gap['process']]} "
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
