"""What exactly-once delivery costs, beside the same work as best effort.

Brokers, publishers and subscribers are processes of their own, and every broker has a journal and
a log on disk. In every round the same events go both ways through the same brokers, so that both
meet the same weather; medians over the rounds are reported. CPU is what the processes used, by
role: the publisher's broker, which logs; one in between; the subscriber's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from motet.bench import failover, floor, reading, stand
from motet.bench.figures import Figure, Progress
from motet.broker.service import PUBEND
from motet.runtime.log.folder import segment_files
from motet.runtime.log.layout import HEADER_BYTES, MILESTONE, RECORD, RECORD_BYTES
from motet.runtime.pubend.records import RUN

ROLES = ("publisher's broker", "broker in between", "subscriber's broker")
PAPER_PER_S = 2000
"""The rate at which paper 5 gives the utilisation of its brokers."""
EVENT_BYTES = 200
"""About what one event takes in the log."""
MIB = 1024 * 1024

# What we promise.
EVENTS_PER_S = 60_000.0
MORE_US = {"publisher's broker": 6.0, "subscriber's broker": 1.5}
MORE_POINTS = {"publisher's broker": 8.0, "subscriber's broker": 4.0}
MORE_MIB = 2.0


@dataclass(frozen=True)
class Effort:
    """How long everything is measured."""

    rounds: int
    events: int
    chain_events: int
    paper_s: float
    pings: int
    pings_per_s: float
    memory_events: int


SHORT = Effort(
    rounds=3, events=100_000, chain_events=60_000, paper_s=3.0, pings=200, pings_per_s=100,
    memory_events=100_000,
)  # fmt: skip
LONG = Effort(
    rounds=5, events=300_000, chain_events=200_000, paper_s=10.0, pings=1000, pings_per_s=100,
    memory_events=200_000,
)  # fmt: skip

Samples = dict[str, list[float]]


def run(short: bool, progress: Progress) -> list[Figure]:
    """All figures of delivery; `progress` is told what is measured now."""
    effort = SHORT if short else LONG
    samples: Samples = defaultdict(list)
    for number in range(1, effort.rounds + 1):
        for name, measure in STAGES.items():
            progress(f"round {number} of {effort.rounds}: {name}")
            for key, value in measure(effort).items():
                samples[key].append(value)
    progress("memory of a broker in between")
    for key, value in _memory(effort).items():
        samples[key].append(value)
    late = reading.run(short, progress)
    return _figures(samples, effort) + late + failover.figures(short, progress)


# ── stages ───────────────────────────────────────────────────────────────────────────────


def _one_broker(effort: Effort) -> dict[str, float]:
    """How fast, and how late."""
    with stand.folder() as folder:
        synced = floor.fsyncs(folder, effort.pings, EVENT_BYTES, effort.pings_per_s)
        with stand.broker(data=folder) as broker:
            where, pace = broker.address, (effort.pings, effort.pings_per_s)
            best_ping = stand.hear_from("load", "ping", where, where, *pace)
            before = commits(folder)
            sure_ping = stand.hear_from("load", "ping", where, where, *pace, "sure")
            groups = commits(folder) - before
            best = stream([broker], "publish", effort.events)
            sure = stream([broker], "log", effort.events)
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


def _chain(effort: Effort) -> dict[str, float]:
    """Who pays for it, when all is as fast as it can be, and at the rate of the paper."""
    taken: dict[str, float] = {}
    events = int(effort.paper_s * PAPER_PER_S)
    with stand.folder() as folder, stand.line(len(ROLES), data=folders(folder)) as line:
        for side, how in (("best", "publish"), ("sure", "log")):
            fast = stream(line, how, effort.chain_events)
            slow = stream(line, how, events, PAPER_PER_S)
            for role in ROLES:
                taken[f"{side} {role}"] = fast[role]
                taken[f"{side} {role}, points"] = slow[role] * PAPER_PER_S / 1e6 * 100
            taken[f"{side} chain rate"] = fast["rate"]
            taken[f"{side} chain lost"] = fast["lost"] + slow["lost"]
    return taken


def _memory(effort: Effort) -> dict[str, float]:
    """Does the stream leave anything behind where it only passes?"""
    with stand.folder() as folder, stand.line(len(ROLES), data=folders(folder)) as line:
        once = stream(line, "log", effort.memory_events)
        before = stand.rss_bytes(line[1].pid)
        twice = stream(line, "log", effort.memory_events)
        after = stand.rss_bytes(line[1].pid)
    return {
        "memory before": before / MIB,
        "memory": after / MIB,
        "memory lost": once["lost"] + twice["lost"],
    }


STAGES: dict[str, Callable[[Effort], dict[str, float]]] = {
    "one broker": _one_broker,
    f"a chain of {len(ROLES)} brokers": _chain,
}


def folders(folder: Path) -> list[Path]:
    return [folder / f"B{number + 1}" for number in range(len(ROLES))]


def stream(brokers: list[stand.Stand], how: str, events: int, per_s: float = 0) -> dict[str, float]:
    """From a publisher at the first broker to a subscriber at the last one: the rate, what was
    lost, and by role the CPU time per event in µs."""
    first, last = brokers[0].address, brokers[-1].address
    with stand.worker("load", "subscribe", last, events) as subscriber:
        subscriber.hear()
        before = [broker.cpu_s() for broker in brokers]
        with stand.worker("load", how, first, events, per_s) as publisher:
            publisher.hear()
            heard = subscriber.hear()
            after = [broker.cpu_s() for broker in brokers]
    spent = (end - begin for begin, end in zip(before, after, strict=True))
    return {
        "rate": heard["events_per_s"],
        "lost": heard["lost"] + heard["disordered"] + heard["dropped"],
    } | {role: each / events * 1e6 for role, each in zip(ROLES, spent, strict=False)}


def commits(folder: Path) -> int:
    """The groups with events that the pubend of a broker, which may be running, has synced so far.
    A milestone stands before each; starts and ends of sessions may have groups of their own."""
    count = 0
    for path in segment_files(folder / PUBEND):
        data, at, counted = path.read_bytes(), HEADER_BYTES, True
        while at < len(data):
            _, length, _, _, kind, _ = RECORD.unpack_from(data, at)
            at += RECORD_BYTES + length
            if kind == MILESTONE:
                counted = False
            elif kind == RUN and not counted:
                counted = True
                count += 1
    return count


# ── figures ──────────────────────────────────────────────────────────────────────────────


def _figures(samples: Samples, effort: Effort) -> list[Figure]:
    middle = {key: median(values) for key, values in samples.items()}
    losses = {key: max(values) for key, values in samples.items() if key.endswith("lost")}
    chain_complete = losses["best chain lost"] + losses["sure chain lost"] == 0
    p50, best_p50 = middle["p50"], middle["best p50"]
    figures = [
        Figure(
            "exactly once with fsync, end to end, window of 1,000 (floor: best effort)",
            middle["rate"], "events/s", middle["best rate"], EVENTS_PER_S, "at least",
            counts=losses["lost"] == 0,
        ),
        Figure(
            f"… through a chain of {len(ROLES)}",
            middle["sure chain rate"], "events/s", middle["best chain rate"], sense="at least",
            counts=chain_complete,
        ),
        Figure(
            "latency at low rate, p50 (floor: best effort and one fsync)",
            p50, "µs", best_p50 + middle["fsync"],
        ),
        Figure("… p99", middle["p99"], "µs"),
        Figure("… over best effort (floor: one fsync)", p50 - best_p50, "µs", middle["fsync"]),
        Figure("group commits for one event at low rate", middle["commits"], "commits", None, 1.0),
    ]  # fmt: skip
    for role in ROLES:
        best, more = middle[f"best {role}"], MORE_US.get(role)
        figures.append(
            Figure(
                f"CPU per event, {role} (floor: best effort)",
                middle[f"sure {role}"], "µs", best, None if more is None else best + more,
                counts=chain_complete,
            )
        )  # fmt: skip
    for role in ROLES:
        best, more = middle[f"best {role}, points"], MORE_POINTS.get(role)
        figures.append(
            Figure(
                f"utilisation of a core at {PAPER_PER_S:,} events/s, {role} (floor: best effort)",
                middle[f"sure {role}, points"], "%", best, None if more is None else best + more,
                counts=chain_complete,
            )
        )  # fmt: skip
    count = effort.memory_events
    figures += [
        Figure(
            f"memory of a broker in between after {2 * count:,} events (floor: after {count:,})",
            middle["memory"], "MiB", middle["memory before"], middle["memory before"] + MORE_MIB,
            counts=losses["memory lost"] == 0,
        ),
        Figure("events lost, doubled or out of order", sum(losses.values()), "events", None, 0.0),
    ]  # fmt: skip
    return figures
