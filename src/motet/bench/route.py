"""A broker on its way: cost per event and hop, throughput and latency over real sockets.

Brokers, publishers and subscribers are processes of their own. Every round measures the floor
and then the product, so that both meet the same weather; medians over the rounds are reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from motet.bench import floor, memory, simulator, stand
from motet.bench.crowd import NEIGHBOURS
from motet.bench.figures import Figure, Progress

LINE = 3
SUBSCRIPTIONS = 10_000


@dataclass(frozen=True)
class Effort:
    """How long everything is measured."""

    rounds: int
    floor_s: float
    events: int
    crowd_s: float
    pings: int
    pings_per_s: float


SHORT = Effort(rounds=3, floor_s=0.5, events=150_000, crowd_s=1.5, pings=300, pings_per_s=200)
LONG = Effort(rounds=7, floor_s=1.0, events=400_000, crowd_s=4.0, pings=2000, pings_per_s=200)

Samples = dict[str, list[float]]


def run(short: bool, progress: Progress) -> list[Figure]:
    """All route figures; `progress` is told what is measured now."""
    effort = SHORT if short else LONG
    samples: Samples = defaultdict(list)
    for number in range(1, effort.rounds + 1):
        for name, measure in STAGES.items():
            progress(f"round {number} of {effort.rounds}: {name}")
            for key, value in measure(effort).items():
                samples[key].append(value)
    figures = _figures(samples)
    progress("simulator")
    figures.append(simulator.measure(short))
    if not short:
        progress("memory of a broker with 1,000,000 subscriptions")
        figures.append(memory.measure())
    return figures


# ── stages ───────────────────────────────────────────────────────────────────────────────


def _floors(effort: Effort) -> dict[str, float]:
    hop = floor.passthrough(effort.floor_s)
    echo = stand.hear_from("load", "echo", effort.pings, effort.pings_per_s)
    busy_echo = stand.hear_from("load", "echo", effort.pings, 0)
    return {
        "floor busy p50": busy_echo["p50_us"],
        "floor cpu": hop.cpu_us_per_event,
        "floor rate": hop.events_per_s,
        "floor p50": echo["p50_us"],
        "floor p99": echo["p99_us"],
    }


def _one_broker(effort: Effort) -> dict[str, float]:
    with stand.broker() as broker:
        return _stream([broker], effort)


def _crowd(effort: Effort) -> dict[str, float]:
    with stand.broker("B1", *NEIGHBOURS) as broker:
        heard = stand.hear_from("crowd", broker.address, broker.pid, SUBSCRIPTIONS, effort.crowd_s)
    return {"crowd cpu": heard["cpu_us_per_event"], "crowd lost": heard["lost"]}


def _line(effort: Effort) -> dict[str, float]:
    with stand.line(LINE) as brokers:
        return {f"line {key}": value for key, value in _stream(brokers, effort).items()}


def _stream(brokers: list[stand.Stand], effort: Effort) -> dict[str, float]:
    """From a publisher at the first broker to a subscriber at the last one."""
    first, last, events = brokers[0].address, brokers[-1].address, effort.events
    ping = stand.hear_from("load", "ping", first, last, effort.pings, effort.pings_per_s)
    busy_ping = stand.hear_from("load", "ping", first, last, effort.pings, 0)
    with stand.worker("load", "subscribe", last, events) as subscriber:
        subscriber.hear()
        cpu_s = sum(broker.cpu_s() for broker in brokers)
        with stand.worker("load", "publish", first, events) as publisher:
            publisher.hear()
            result = subscriber.hear()
            cpu_s = sum(broker.cpu_s() for broker in brokers) - cpu_s
    return {
        "cpu": cpu_s / events / len(brokers) * 1e6,
        "rate": result["events_per_s"],
        "lost": result["lost"] + result["disordered"] + result["dropped"],
        "busy p50": busy_ping["p50_us"],
        "p50": ping["p50_us"],
        "p99": ping["p99_us"],
    }


STAGES: dict[str, Callable[[Effort], dict[str, float]]] = {
    "floor": _floors,
    "one broker": _one_broker,
    f"one broker, {SUBSCRIPTIONS:,} subscriptions": _crowd,
    f"a line of {LINE} brokers": _line,
}


# ── figures ──────────────────────────────────────────────────────────────────────────────


def _figures(samples: Samples) -> list[Figure]:
    middle = {key: median(values) for key, values in samples.items()}
    complete, crowd_complete, line_complete = (
        max(samples[key]) == 0 for key in ("lost", "crowd lost", "line lost")
    )
    cpu, rate, echo = middle["floor cpu"], middle["floor rate"], middle["floor p50"]
    return [
        Figure(
            "broker CPU per event and hop, few subscriptions",
            middle["cpu"], "µs", cpu, 6.0, counts=complete,
        ),
        Figure(
            f"broker CPU per event, {SUBSCRIPTIONS:,} subscriptions, 1 % match on 4 next hops",
            middle["crowd cpu"], "µs", cpu, 15.0, counts=crowd_complete,
        ),
        Figure(
            "end to end, one broker, 142-byte events",
            middle["rate"], "events/s", rate, 100_000.0, "at least", counts=complete,
        ),
        Figure("latency at low rate, one broker, p50", middle["p50"], "µs", echo, 250.0),
        Figure(
            "latency one event after the other, one broker, p50",
            middle["busy p50"], "µs", middle["floor busy p50"],
        ),
        Figure("latency at low rate, one broker, p99", middle["p99"], "µs", middle["floor p99"]),
        Figure(
            f"broker CPU per event and hop, line of {LINE}",
            middle["line cpu"], "µs", cpu, counts=line_complete,
        ),
        Figure(
            f"end to end, line of {LINE} brokers",
            middle["line rate"], "events/s", rate, sense="at least", counts=line_complete,
        ),
        # Four hops one way: twice the round trip of an echo.
        Figure(f"latency at low rate, line of {LINE}, p50", middle["line p50"], "µs", 2 * echo),
        Figure(
            "events lost, doubled or out of order",
            sum(max(samples[key]) for key in ("lost", "crowd lost", "line lost")),
            "events", None, 0.0,
        ),
    ]  # fmt: skip
