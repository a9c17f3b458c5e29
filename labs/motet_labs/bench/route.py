"""Routing: CPU time per event and hop, throughput and latency over real sockets; the memory of a
broker with very many subscriptions; the speed of the simulator.

Brokers, publishers and subscribers are processes of their own. Every round measures the floor and
then the product, so that both run under the same conditions; medians over the rounds are reported.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import core_of
from motet.fleet.process import BrokerProcess, rss_bytes
from motet.model import Filter, OpId
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Received
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.link.messages import Control, LinkHello
from motet.protocol.routing.messages import Subscribe
from motet.testing.cluster import Cluster
from motet.testing.faults import DEFAULT_PROFILE, profile
from motet.testing.simulation import simulate
from motet_labs import processes
from motet_labs.bench import floor, load
from motet_labs.figures import Figure, Progress, Samples, Size, in_rounds
from motet_labs.processes import hear_from

LINE = 3
GIB = 1024**3


class RouteEffort(NamedTuple):
    rounds: int
    floor_s: float
    events: int
    crowd_s: float
    pings: int
    pings_per_s: float
    subscriptions: int
    """In the crowd."""
    memory_subscriptions: int
    """Of the broker whose memory is measured; 0: not measured."""
    simulator_s: float


EFFORTS = {
    Size.LEAST: RouteEffort(1, 0.05, 2000, 0.1, 5, 200, 200, 1000, 0.0),
    Size.SHORT: RouteEffort(3, 0.5, 150_000, 1.5, 300, 200, 10_000, 0, 4.0),
    Size.LONG: RouteEffort(7, 1.0, 400_000, 4.0, 2000, 200, 10_000, 1_000_000, 20.0),
}


def run(size: Size, progress: Progress) -> list[Figure]:
    effort = EFFORTS[size]
    figures = _figures(in_rounds(effort.rounds, STAGES, effort, progress), effort)
    progress("simulator")
    figures.append(_simulator(effort.simulator_s))
    many = effort.memory_subscriptions
    if many:
        name = f"memory of a broker with {many:,} subscriptions"
        progress(name)
        figures.append(Figure(name, hear_from(memory, many)["gib"], "GiB", None, 4.0))
    return figures


def _floors(effort: RouteEffort) -> dict[str, float]:
    hop = floor.passthrough(effort.floor_s)
    echo = hear_from(load.echo, effort.pings, effort.pings_per_s)
    return {
        "floor busy p50": hear_from(load.echo, effort.pings, 0)["p50_us"],
        "floor cpu": hop.cpu_us_per_event,
        "floor rate": hop.events_per_s,
        "floor p50": echo["p50_us"],
        "floor p99": echo["p99_us"],
    }


def _one_broker(effort: RouteEffort) -> dict[str, float]:
    with processes.broker() as broker:
        return _stream([broker], effort)


def _crowd(effort: RouteEffort) -> dict[str, float]:
    with processes.broker("B1", *load.NEIGHBOURS) as broker:
        how = (broker.address, broker.pid, effort.subscriptions, effort.crowd_s)
        heard = hear_from(load.crowd, *how)
    return {"crowd cpu": heard["cpu_us_per_event"], "crowd lost": heard["lost"]}


def _line(effort: RouteEffort) -> dict[str, float]:
    with processes.line(LINE) as brokers:
        return {f"line {key}": value for key, value in _stream(brokers, effort).items()}


def _stream(brokers: list[BrokerProcess], effort: RouteEffort) -> dict[str, float]:
    ends = brokers[0].address, brokers[-1].address
    ping = hear_from(load.ping, *ends, effort.pings, effort.pings_per_s)
    busy_ping = hear_from(load.ping, *ends, effort.pings, 0)
    found, cpu_us = load.stream(brokers, effort.events)
    cpu = {"cpu": sum(cpu_us) / len(brokers), "busy p50": busy_ping["p50_us"]}
    return found | cpu | {"p50": ping["p50_us"], "p99": ping["p99_us"]}


STAGES: dict[str, Callable[[RouteEffort], dict[str, float]]] = {
    "floor": _floors,
    "one broker": _one_broker,
    "one broker, many subscriptions": _crowd,
    f"a line of {LINE} brokers": _line,
}


def _figures(samples: Samples, effort: RouteEffort) -> list[Figure]:
    middle = samples.medians()
    losses = [max(samples[key]) for key in ("lost", "crowd lost", "line lost")]
    complete, crowd_complete, line_complete = (lost == 0 for lost in losses)
    cpu, rate, echo = middle["floor cpu"], middle["floor rate"], middle["floor p50"]
    many = f"{effort.subscriptions:,} subscriptions"
    return [
        Figure("broker CPU per event and hop, few subscriptions",
               middle["cpu"], "µs", cpu, 6.0, counts=complete),
        Figure(f"broker CPU per event, {many}, 1 % match on 4 next hops",
               middle["crowd cpu"], "µs", cpu, 15.0, counts=crowd_complete),
        Figure("end to end, one broker, 142-byte events",
               middle["rate"], "events/s", rate, 100_000.0, "at least", counts=complete),
        Figure("latency at low rate, one broker, p50", middle["p50"], "µs", echo, 250.0),
        Figure("latency one event after the other, one broker, p50",
               middle["busy p50"], "µs", middle["floor busy p50"]),
        Figure("latency at low rate, one broker, p99", middle["p99"], "µs", middle["floor p99"]),
        Figure(f"broker CPU per event and hop, line of {LINE}",
               middle["line cpu"], "µs", cpu, counts=line_complete),
        Figure(f"end to end, line of {LINE} brokers",
               middle["line rate"], "events/s", rate, sense="at least", counts=line_complete),
        # Four hops one way: twice the round trip of an echo.
        Figure(f"latency at low rate, line of {LINE}, p50", middle["line p50"], "µs", 2 * echo),
        Figure("events lost, doubled or out of order", sum(losses), "events", None, 0.0),
    ]  # fmt: skip


# ── memory ───────────────────────────────────────────────────────────────────────────────

CHUNK = 256
SYMBOLS = 10_000


def memory(subscriptions: int) -> dict[str, float]:
    """Memory of a broker whose one neighbour has this many different subscriptions."""
    core = core_of(Durable(BrokerConfig("B1", ("B2",))))
    core.step(Received(1, LinkHello(PROTOCOL_VERSION, "B2", 1, known=0, received=0)), 0.0)
    draw = random.Random(1)
    for start in range(0, subscriptions, CHUNK):
        numbers = range(start + 1, min(start + CHUNK, subscriptions) + 1)
        messages = tuple(
            Subscribe(OpId(f"client-{number // 100}", "B2-1", number), _wanted(draw))
            for number in numbers
        )
        core.step(Received(1, Control(start + 1, messages)), float(start))
    tables = core.status()["tables"]
    assert tables["subscriptions"] == subscriptions, tables
    return {"gib": rss_bytes(os.getpid()) / GIB}


def _wanted(draw: random.Random) -> Filter:
    """Decoded from bytes, as from the wire: the filter keeps them."""
    low = round(draw.uniform(0, 900), 2)
    written = Filter.parse(
        f"symbol = 'SYM{draw.randrange(SYMBOLS)}' and price between {low} and {low + 100} "
        f"and quantity > {draw.randrange(10_000)}"
    )
    return Filter.from_bytes(written.to_bytes())


# ── the simulator ────────────────────────────────────────────────────────────────────────

BROKERS = 5


def _simulator(seconds: float) -> Figure:
    """Whole runs of seeds whose overlay happens to have five brokers, on one core, all checks
    included. A step is one input of one machine; about three in five are brokers'."""
    steps, took_s = 0, 0.0
    settings = profile(DEFAULT_PROFILE)
    for seed in (seed for seed in count() if len(Cluster(seed, settings).brokers) == BROKERS):
        began = time.perf_counter()
        steps += simulate(seed, DEFAULT_PROFILE).steps
        took_s += time.perf_counter() - began
        if took_s > seconds:
            break
    name = f"simulator, {BROKERS} brokers, steps of brokers and clients"
    return Figure(name, steps / took_s, "steps/s", None, 20_000.0, "at least")
