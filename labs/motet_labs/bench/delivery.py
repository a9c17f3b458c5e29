"""The cost of exactly-once delivery, compared with the same work as best effort.

Brokers, publishers and subscribers are processes of their own, and every broker has a journal and a
log on disk. In every round the same events go through the same brokers in both modes, so that both
run under the same conditions; medians over the rounds are reported. CPU time is given by role: the
publisher's broker, which logs; one in between; the subscriber's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from motet.fleet.process import BrokerProcess, rss_bytes
from motet_labs import processes
from motet_labs.bench import failover, floor, journal, load, logs
from motet_labs.figures import Figure, Progress, Samples, Size, in_rounds
from motet_labs.processes import hear_from

ROLES = ("publisher's broker", "broker in between", "subscriber's broker")
PAPER_PER_S = 2000
"""The rate at which paper 5 gives the utilisation of its brokers."""
EVENT_BYTES = 200
"""Approximate size of an event in the log."""
MIB = 1024 * 1024

# Goals.
EVENTS_PER_S = 60_000.0
MORE_US = {"publisher's broker": 6.0, "subscriber's broker": 1.5}
MORE_POINTS = {"publisher's broker": 8.0, "subscriber's broker": 4.0}
MORE_MIB = 2.0


class DeliveryEffort(NamedTuple):
    rounds: int
    events: int
    chain_events: int
    paper_s: float
    pings: int
    memory_events: int
    pings_per_s: float = 100


EFFORTS = {
    Size.LEAST: DeliveryEffort(1, 1000, 1000, 0.2, pings=5, memory_events=1000),
    Size.SHORT: DeliveryEffort(3, 100_000, 60_000, 3.0, pings=200, memory_events=100_000),
    Size.LONG: DeliveryEffort(5, 300_000, 200_000, 10.0, pings=1000, memory_events=200_000),
}


def run(size: Size, progress: Progress) -> list[Figure]:
    effort = EFFORTS[size]
    samples = in_rounds(effort.rounds, STAGES, effort, progress)
    progress("memory of a broker in between")
    samples.add(_memory(effort))
    late = logs.measure_readers(size, progress)
    return _figures(samples, effort) + late + failover.figures(size, progress)


def _one_broker(effort: DeliveryEffort) -> dict[str, float]:
    """Rate and latency."""
    with processes.folder() as folder:
        synced = floor.fsyncs(folder, effort.pings, EVENT_BYTES, effort.pings_per_s)
        with processes.broker(data=folder) as broker:
            how = (broker.address, broker.address, effort.pings, effort.pings_per_s)
            best_ping = hear_from(load.ping, *how)
            before = journal.pubend_commits(folder)
            sure_ping = hear_from(load.ping, *how, True)
            groups = journal.pubend_commits(folder) - before
            best, _ = load.stream([broker], effort.events)
            sure, _ = load.stream([broker], effort.events, sure=True)
    return {
        "best rate": best["rate"],
        "rate": sure["rate"],
        "lost": best["lost"] + sure["lost"],
        "fsync": median(synced) * 1e6,
        "best p50": best_ping["p50_us"],
        "p50": sure_ping["p50_us"],
        "p99": sure_ping["p99_us"],
        "commits": groups / effort.pings,
    }


@contextmanager
def _durable_line() -> Iterator[list[BrokerProcess]]:
    with processes.folder() as folder:
        folders = [folder / f"B{number + 1}" for number in range(len(ROLES))]
        with processes.line(len(ROLES), data=folders) as line:
            yield line


def _chain(effort: DeliveryEffort) -> dict[str, float]:
    """The cost by role, at full speed and at the rate of the paper."""
    taken: dict[str, float] = {}
    events = int(effort.paper_s * PAPER_PER_S)
    with _durable_line() as line:
        for side in ("best", "sure"):
            sure = side == "sure"
            fast, fast_us = load.stream(line, effort.chain_events, sure=sure)
            slow, slow_us = load.stream(line, events, sure=sure, per_s=PAPER_PER_S)
            for role, busy, idle in zip(ROLES, fast_us, slow_us, strict=True):
                taken[f"{side} {role}"] = busy
                taken[f"{side} {role}, points"] = idle * PAPER_PER_S / 1e6 * 100
            taken[f"{side} chain rate"] = fast["rate"]
            taken[f"{side} chain lost"] = fast["lost"] + slow["lost"]
    return taken


def _memory(effort: DeliveryEffort) -> dict[str, float]:
    """Whether a stream leaves memory behind at a broker that it only passes through."""
    with _durable_line() as line:
        once, _ = load.stream(line, effort.memory_events, sure=True)
        before = rss_bytes(line[1].pid)
        twice, _ = load.stream(line, effort.memory_events, sure=True)
        after = rss_bytes(line[1].pid)
    lost = once["lost"] + twice["lost"]
    return {"memory before": before / MIB, "memory": after / MIB, "memory lost": lost}


STAGES: dict[str, Callable[[DeliveryEffort], dict[str, float]]] = {
    "one broker": _one_broker,
    f"a chain of {len(ROLES)} brokers": _chain,
}


def _figures(samples: Samples, effort: DeliveryEffort) -> list[Figure]:
    middle = samples.medians()
    losses = {key: max(values) for key, values in samples.items() if key.endswith("lost")}
    complete = losses["best chain lost"] + losses["sure chain lost"] == 0
    p50, best_p50 = middle["p50"], middle["best p50"]

    def by_role(name: str, key: str, unit: str, most: dict[str, float]) -> list[Figure]:
        found = []
        for role in ROLES:
            best, value = middle[f"best {role}{key}"], middle[f"sure {role}{key}"]
            goal = best + most[role] if role in most else None
            name_of = f"{name}, {role} (floor: best effort)"
            found.append(Figure(name_of, value, unit, best, goal, counts=complete))
        return found

    count = effort.memory_events
    return [
        Figure("exactly once with fsync, end to end, window of 1,000 (floor: best effort)",
               middle["rate"], "events/s", middle["best rate"], EVENTS_PER_S, "at least",
               counts=losses["lost"] == 0),
        Figure(f"… through a chain of {len(ROLES)}",
               middle["sure chain rate"], "events/s", middle["best chain rate"], sense="at least",
               counts=complete),
        Figure("latency at low rate, p50 (floor: best effort and one fsync)",
               p50, "µs", best_p50 + middle["fsync"]),
        Figure("… p99", middle["p99"], "µs"),
        Figure("… over best effort (floor: one fsync)", p50 - best_p50, "µs", middle["fsync"]),
        Figure("group commits for one event at low rate", middle["commits"], "commits", None, 1.0),
        *by_role("CPU per event", "", "µs", MORE_US),
        *by_role(
            f"utilisation of a core at {PAPER_PER_S:,} events/s", ", points", "%", MORE_POINTS
        ),
        Figure(f"memory of a broker in between after {2 * count:,} events (floor: after {count:,})",
               middle["memory"], "MiB", middle["memory before"], middle["memory before"] + MORE_MIB,
               counts=losses["memory lost"] == 0),
        Figure("events lost, doubled or out of order", sum(losses.values()), "events", None, 0.0),
    ]  # fmt: skip
