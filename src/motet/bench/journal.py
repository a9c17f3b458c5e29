"""What durability costs: control that waits for the disk, coming back, snapshots on the way.

Brokers, clients and whoever reads a folder are processes of their own. In every round each
measurement with a journal stands beside the same one without, or beside what the bare disk does,
so that both meet the same weather; medians over the rounds are reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from motet.bench import floor, log, rejoin, stand
from motet.bench.figures import Figure, Progress

CLIENTS = 64
LINE = 3
SUBSCRIPTIONS = 100_000
RECORD_BYTES = 200
"""About what one subscription takes in a journal."""

# What we promise.
OPERATIONS_PER_S = 20_000.0
REPLAY_RATIO = 2.0
LOAD_S = 5.0
PAUSE_MS = 20.0
EVENTS_RATIO = 0.95


@dataclass(frozen=True)
class Effort:
    """How long everything is measured."""

    rounds: int
    churn_s: float
    events: int
    settlings: int
    fsyncs: int
    snapshots: int
    idle_s: float


SHORT = Effort(
    rounds=3, churn_s=1.5, events=100_000, settlings=100, fsyncs=200, snapshots=1, idle_s=2.0
)
LONG = Effort(
    rounds=7, churn_s=4.0, events=300_000, settlings=400, fsyncs=1000, snapshots=3, idle_s=5.0
)

Samples = dict[str, list[float]]


def run(short: bool, progress: Progress) -> list[Figure]:
    """All figures of the journal; `progress` is told what is measured now."""
    effort = SHORT if short else LONG
    samples: Samples = defaultdict(list)
    for number in range(1, effort.rounds + 1):
        for name, measure in STAGES.items():
            progress(f"round {number} of {effort.rounds}: {name}")
            for key, value in measure(effort).items():
                samples[key].append(value)
    progress(f"a snapshot of {SUBSCRIPTIONS:,} subscriptions")
    samples |= _snapshot(effort)
    progress("a neighbour that joins anew")
    rejoining = rejoin.measure(short)
    return [*_figures(samples), *log.measure(short, progress), *rejoining]


# ── stages ───────────────────────────────────────────────────────────────────────────────


def _disk(effort: Effort) -> dict[str, float]:
    """The floor: one small record after the other, each synced."""
    with stand.folder() as folder:
        times = floor.fsyncs(folder, effort.fsyncs, RECORD_BYTES)
    return {"fsync us": median(times) * 1e6, "fsync rate": len(times) / sum(times)}


def _churn(effort: Effort) -> dict[str, float]:
    """The same load on both; then the journal of one is replayed."""
    with stand.broker() as broker:
        volatile = stand.hear_from("churn", broker.address, broker.pid, CLIENTS, effort.churn_s)
    with stand.folder() as folder:
        with stand.broker(data=folder) as broker:
            durable = stand.hear_from("churn", broker.address, broker.pid, CLIENTS, effort.churn_s)
        loaded = stand.hear_from("comeback", "load", folder)
    missing = durable["answered"] - loaded["facts"]
    return {
        "volatile operations": volatile["operations_per_s"],
        "volatile cpu": volatile["cpu_us_per_operation"],
        "operations": durable["operations_per_s"],
        "cpu": durable["cpu_us_per_operation"],
        "replay": loaded["facts"] / loaded["seconds"],
        "lost operations": max(missing, 0.0),
    }


def _settling(effort: Effort) -> dict[str, float]:
    """One operation at a time, at one broker and along a line, without and with journals."""
    taken: dict[str, float] = {}
    for brokers in (1, LINE):
        with stand.line(brokers) as line:
            heard = _settle(line, effort.settlings, [])
            taken[f"volatile settling {brokers}"] = heard["p50_us"]
        with stand.folder() as folder:
            folders = [folder / f"B{number + 1}" for number in range(brokers)]
            with stand.line(brokers, data=folders) as line:
                heard = _settle(line, effort.settlings, folders)
        taken[f"settling {brokers}"] = heard["p50_us"]
        taken[f"commits {brokers}"] = heard["commits"]
    return taken


def _settle(line: list[stand.Stand], operations: int, folders: list[Path]) -> dict[str, float]:
    ends = line[0].address, line[-1].address
    return stand.hear_from("settling", *ends, operations, *folders)


def _events(effort: Effort) -> dict[str, float]:
    """Regular publications, which no journal sees."""
    with stand.broker() as broker:
        volatile = _stream(broker, effort.events)
    with stand.folder() as folder, stand.broker(data=folder) as broker:
        durable = _stream(broker, effort.events)
    lost = sum(heard[key] for heard in (volatile, durable) for key in LOSSES)
    return {
        "volatile events": volatile["events_per_s"],
        "events": durable["events_per_s"],
        "lost events": lost,
    }


LOSSES = ("lost", "disordered", "dropped")


def _stream(broker: stand.Stand, events: int) -> dict[str, float]:
    with stand.worker("load", "subscribe", broker.address, events) as subscriber:
        subscriber.hear()
        with stand.worker("load", "publish", broker.address, events) as publisher:
            publisher.hear()
            return subscriber.hear()


def _snapshot(effort: Effort) -> Samples:
    """Take one while the loop is watched, and load it, a few times."""
    samples: Samples = defaultdict(list)
    for _ in range(effort.snapshots):
        with stand.folder() as folder:
            stand.hear_from("comeback", "fill", folder, SUBSCRIPTIONS)
            paused = stand.hear_from("comeback", "pause", folder, effort.idle_s)
            loaded = stand.hear_from("comeback", "load", folder)
        samples["idle pause"].append(paused["idle_ms"])
        samples["pause"].append(paused["pause_ms"])
        samples["work"].append(paused["work_ms"])
        samples["snapshot"].append(paused["took_s"])
        samples["load"].append(loaded["seconds"])
        samples["lost subscriptions"].append(SUBSCRIPTIONS - loaded["subscriptions"])
    return samples


STAGES: dict[str, Callable[[Effort], dict[str, float]]] = {
    "the disk": _disk,
    f"{CLIENTS} clients that subscribe and unsubscribe": _churn,
    "one operation after the other": _settling,
    "events": _events,
}


# ── figures ──────────────────────────────────────────────────────────────────────────────


def _figures(samples: Samples) -> list[Figure]:
    middle = {key: median(values) for key, values in samples.items()}
    complete = max(samples["lost operations"]) == 0
    live, fsync_us = middle["operations"], middle["fsync us"]
    figures = [
        Figure(
            f"durable subscribe and unsubscribe operations, {CLIENTS} clients",
            live, "operations/s", middle["volatile operations"], OPERATIONS_PER_S, "at least",
            counts=complete,
        ),
        Figure("fsyncs of this run, one after the other", middle["fsync rate"], "fsyncs/s"),
        Figure("broker CPU per durable operation", middle["cpu"], "µs", middle["volatile cpu"]),
        Figure(
            "replay of the journal of the same operations",
            middle["replay"], "facts/s", live, REPLAY_RATIO * live, "at least", counts=complete,
        ),
        Figure(
            f"snapshot of {SUBSCRIPTIONS:,} subscriptions: loading it",
            middle["load"], "s", None, LOAD_S, counts=max(samples["lost subscriptions"]) == 0,
        ),
        Figure("… taking it, in another process", middle["snapshot"], "s"),
        Figure(
            "… longest pause of the event loop meanwhile",
            middle["pause"], "ms", middle["idle pause"], PAUSE_MS,
        ),
        Figure("… of which the loop was at work", middle["work"], "ms", None, PAUSE_MS),
        Figure(
            "events end to end, broker with a journal",
            middle["events"], "events/s", middle["volatile events"],
            EVENTS_RATIO * middle["volatile events"], "at least",
            counts=max(samples["lost events"]) == 0,
        ),
    ]  # fmt: skip
    for brokers in (1, LINE):
        # To the far end and back: every broker on the way but the last writes twice.
        on_the_way = float(2 * brokers - 1)
        where = "one broker" if brokers == 1 else f"line of {brokers}"
        figures += [
            Figure(
                f"group commits for one operation, {where}",
                middle[f"commits {brokers}"], "commits", None, on_the_way,
            ),
            Figure(
                f"latency of one durable operation, {where}, p50",
                middle[f"settling {brokers}"], "µs",
                middle[f"volatile settling {brokers}"] + on_the_way * fsync_us,
            ),
        ]  # fmt: skip
    return figures
