"""Order across topics: timestamps per second and their latency through sockets, with every fact on
disk before its answer, alone and with a standby; how long publishers stand still when a primary is
killed; the machine of a site alone; ordered against plain events over real event services; how long
a stream stops when it adds a topic; the checkers of long histories.

Sites, servers, publishers and subscribers are processes of their own. The floor of a site is a
process that reads the same frames, syncs one record for each read, and answers; that of ordered
events are plain events through the same server with the service's own library.

The workload of a site is that of the paper, on one site: clients with 10 topics each, and events,
are both drawn by a power law over 1,000 topics, by which 0.5 % of them (geographic), or 40 %
(spray), get 80 % of all choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from motet.fleet.process import SiteProcess, cpu_s, free_addresses, running
from motet.fleet.servers import Mosquitto, NatsServer, RedisServer, Server
from motet.protocol.sequencing.messages import CAUSAL, MODES, PAIRS
from motet_labs import processes
from motet_labs.bench import failovers, sequencers, services
from motet_labs.bench.failovers import SitePair
from motet_labs.figures import Figure, Progress, Samples, Size, in_rounds
from motet_labs.processes import Worker, worker

SHAPES = ("geographic", "spray")
SITES = ("S1", "S2", "S3")
"""Of the line over which a stream adds topics."""
PATIENT = ("--keep", "3600", "--lease", "600")
"""Streams of the load say nothing."""
MIRRORED = "mirrored"
EVENTS_AFTER = 200
"""A fail-over is over when so many events have come."""
CHECKED_TOPICS = 10
CHECKED_SESSIONS = 20

# Goals.
PER_S = {"geographic": 50_000.0, "spray": 20_000.0}
OVER_FLOOR = 2.0
ENTRIES = {
    ("geographic", PAIRS): 10.0, ("spray", PAIRS): 90.0,
    ("geographic", CAUSAL): 12.0, ("spray", CAUSAL): 150.0,
}  # fmt: skip
NAMES = {"nats": "NATS", "redis": "Redis", "mqtt": "MQTT", "motet": "Motet"}
AGAINST_PLAIN = {"nats": 0.5, "redis": 1.0, "mqtt": 1.0, "motet": 0.5}
CHECKED_S = 20.0
MIRRORED_SHARE = 0.5
SILENCE_S = 3.0


class OrderingEffort(NamedTuple):
    rounds: int
    clients: int
    topics: int
    frames: int
    """Of 64 requests; of spray, half as many."""
    alone: int
    """Requests, and changes, one after the other."""
    warm_up: int
    stamps: int
    """In process."""
    events: Mapping[str, int]
    """By service."""
    deliveries: int = 0
    """That are checked; 0: none."""
    failovers: int = 1


EVENTS = {"nats": 100_000, "redis": 30_000, "mqtt": 10_000, "motet": 30_000}
EFFORTS = {
    Size.LEAST: OrderingEffort(1, 100, 400, 4, 3, 256, 256, dict.fromkeys(EVENTS, 100)),
    Size.SHORT: OrderingEffort(
        2,
        10_000,
        1000,
        800,
        200,
        20_000,
        40_000,
        {name: n // 3 for name, n in EVENTS.items()},
        failovers=3,
    ),
    Size.LONG: OrderingEffort(
        5, 10_000, 1000, 2500, 1000, 100_000, 200_000, EVENTS, deliveries=1_000_000, failovers=9
    ),
}


def run(size: Size, progress: Progress) -> list[Figure]:
    effort = EFFORTS[size]
    figures: list[Figure] = []
    for part in (_sites, _standby, _failovers, _machine, _services):
        with processes.folder() as folder, ExitStack() as stack:
            figures += part(effort, OrderingStage(folder, stack), progress)
    if effort.deliveries:
        progress(f"{effort.deliveries:,} deliveries")
        figures.append(_checkers(effort.deliveries))
    return figures


class OrderingStage(NamedTuple):
    """Starts processes, which all end together."""

    folder: Path
    stack: ExitStack

    def worker(self, work: Callable[..., object], *arguments: object) -> Worker:
        """One that is ready."""
        working = self.stack.enter_context(worker(work, *arguments))
        assert working.hear()["ready"]
        return working

    def echo(self) -> str:
        place = self.folder / "echo"
        place.mkdir()
        echo = self.stack.enter_context(worker(sequencers.synced_echo, place))
        address: str = echo.hear()["address"]
        return address

    def site(self, name: str, *options: str) -> SiteProcess:
        return self.stack.enter_context(_site(self.folder, "S1", name, *options))

    def line(self) -> list[SiteProcess]:
        """Each of `SITES`, with the topics that begin with its name."""
        places = "".join(
            f'[sites.{site}]\nlisten = "{address}"\ntopics = ["{site}.*"]\n'
            for site, address in zip(SITES, free_addresses(len(SITES)), strict=True)
        )
        names = ", ".join(f'"{site}"' for site in SITES)
        file = self.folder / "sites.toml"
        file.write_text(f"[ordering]\nline = [{names}]\nkeep_s = 3600\n{places}")
        return [
            self.stack.enter_context(_site(self.folder, site, site, "--sites", str(file)))
            for site in SITES
        ]


@contextmanager
def _site(folder: Path, name: str, place: str, *options: str) -> Iterator[SiteProcess]:
    here = folder / f"site-{place}"
    here.mkdir()
    with running(SiteProcess(name, options, here)) as process:
        assert isinstance(process, SiteProcess)
        yield process


@cache
def _exponent(shape: str, topics: int) -> float:
    from motet.spark.workload.randomness import model  # it loads Spark

    return model(shape, topics).exponent


def _alone(*options: str) -> tuple[str, ...]:
    return ("--listen", "motet://127.0.0.1:0", *PATIENT, *options)


# ── timestamps through sockets ───────────────────────────────────────────────────────────


def _sites(effort: OrderingEffort, stage: OrderingStage, progress: Progress) -> list[Figure]:
    load = stage.worker(sequencers.loads)
    echo = stage.echo()
    pids = {}
    for shape in SHAPES:
        progress(f"{effort.clients:,} clients, {shape}")
        site = stage.site(shape, *_alone())
        pids[shape] = site.pid
        how = {"exponent": _exponent(shape, effort.topics), "topics": effort.topics}
        load.ask("publisher", name=f"{shape} floor", address=echo, streams=0, **how)
        load.ask("publisher", name=shape, address=site.address, streams=effort.clients, **how)
    line = [site.address for site in stage.line()]
    load.ask("stream", name="one", addresses=line[:1], per_site=2)
    load.ask("stream", name="many", addresses=line, per_site=1)

    def rate(shape: str, effort: OrderingEffort) -> dict[str, float]:
        frames = effort.frames if shape == SHAPES[0] else effort.frames // 2
        least = load.ask("numbers", name=f"{shape} floor", frames=frames)
        cpu = cpu_s(pids[shape])
        found = load.ask("numbers", name=shape, frames=frames)
        cpu_us = (cpu_s(pids[shape]) - cpu) / (frames * sequencers.BATCH) * 1e6
        return {
            f"{shape} floor": least["per_s"],
            f"{shape} rate": found["per_s"],
            f"{shape} cpu": cpu_us,
        }

    def latency(effort: OrderingEffort) -> dict[str, float]:
        times = effort.alone
        return {
            "echo": load.ask("alone", name=f"{SHAPES[0]} floor", times=times)["p50_us"],
            "one": load.ask("alone", name=SHAPES[0], times=times)["p50_us"],
            "stop": load.ask("add", name="one", times=times)["p50_us"],
            "stop of three": load.ask("add", name="many", times=times)["p50_us"],
        }

    stages = {shape: partial(rate, shape) for shape in SHAPES} | {"latency": latency}
    middle = in_rounds(effort.rounds, stages, effort, progress).medians()
    figures = []
    for shape in SHAPES:
        what = f"{effort.clients:,} clients, {shape}, with fsync"
        figures += [
            Figure(f"timestamps of one site, {what}", middle[f"{shape} rate"], "per s",
                   middle[f"{shape} floor"], PER_S[shape], "at least"),
            Figure(f"CPU of the site per timestamp, {shape}", middle[f"{shape} cpu"], "µs"),
        ]  # fmt: skip
    least = middle["echo"]
    passed = len(SITES) * least
    return [
        *figures,
        Figure("one timestamp, alone (floor: echo and fsync)",
               middle["one"], "µs", least, OVER_FLOOR * least),
        Figure("a stream's stop when it adds a topic, one site",
               middle["stop"], "µs", least, OVER_FLOOR * least),
        Figure(f"… over {len(SITES)} sites (floor: as many echoes with fsync)",
               middle["stop of three"], "µs", passed, OVER_FLOOR * passed),
    ]  # fmt: skip


# ── with a standby ───────────────────────────────────────────────────────────────────────


def _standby(effort: OrderingEffort, stage: OrderingStage, progress: Progress) -> list[Figure]:
    """Three processes, beside one that is alone."""
    shape = SHAPES[0]
    progress(f"{effort.clients:,} clients, {shape}, with and without a standby")
    load = stage.worker(sequencers.loads)
    pair = SitePair(stage.folder / "pair", stage.stack, *PATIENT)
    sites = {"alone": stage.site("alone", *_alone()).address, MIRRORED: pair.primary.address}
    how = {"exponent": _exponent(shape, effort.topics), "topics": effort.topics}
    for name, address in sites.items():
        load.ask("publisher", name=name, address=address, streams=effort.clients, **how)

    def measure(name: str, effort: OrderingEffort) -> dict[str, float]:
        return {
            f"{name} rate": load.ask("numbers", name=name, frames=effort.frames)["per_s"],
            f"{name} one": load.ask("alone", name=name, times=effort.alone)["p50_us"],
        }

    stages = {name: partial(measure, name) for name in sites}
    middle = in_rounds(effort.rounds, stages, effort, progress).medians()
    alone = middle["alone rate"]
    return [
        Figure(f"timestamps of one site with a standby in step, {shape} (floor: without)",
               middle[f"{MIRRORED} rate"], "per s", alone, MIRRORED_SHARE * alone, "at least"),
        Figure("one timestamp, alone, with a standby in step (floor: without)",
               middle[f"{MIRRORED} one"], "µs", middle["alone one"]),
    ]  # fmt: skip


# ── fail-over ────────────────────────────────────────────────────────────────────────────


def _failovers(effort: OrderingEffort, stage: OrderingStage, progress: Progress) -> list[Figure]:
    """Its patience is the usual one; the primary is killed with kill -9."""
    progress("fail-over")
    pair = SitePair(stage.folder / "killed", stage.stack)
    watch = stage.worker(failovers.watches)
    watch.ask("open", sequencer=pair.primary.address)
    silences = []
    for _ in range(effort.failovers):
        watch.ask("begin")
        pair.fail_over()
        silences.append(watch.ask("silence", events=EVENTS_AFTER)["longest_s"])
        pair.come_back()
    right = watch.ask("end")["right"]
    name = "silence when a primary is killed, with a standby and a witness"
    return [Figure(name, median(silences), "s", None, SILENCE_S, counts=right)]


# ── the machine alone ────────────────────────────────────────────────────────────────────


def _machine(effort: OrderingEffort, stage: OrderingStage, progress: Progress) -> list[Figure]:
    machine = stage.worker(sequencers.machines)

    def measure(shape: str, mode: str, effort: OrderingEffort) -> dict[str, float]:
        found = machine.ask(
            "measure",
            exponent=_exponent(shape, effort.topics),
            mode=mode,
            clients=effort.clients,
            topics=effort.topics,
            warm_up=effort.warm_up,
            events=effort.stamps,
        )
        return {f"{shape} {mode} {key}": value for key, value in found.items()}

    kinds = [(shape, mode) for shape in SHAPES for mode in MODES]
    stages = {f"{shape}, {mode}": partial(measure, shape, mode) for shape, mode in kinds}
    middle = in_rounds(min(effort.rounds, 2), stages, effort, progress).medians()
    figures = []
    for shape, mode in kinds:
        what = f"{shape}, {mode}"
        figures += [
            Figure(f"CPU per timestamp in process, {what}", middle[f"{shape} {mode} us"], "µs"),
            Figure(f"entries sent per event, {what}", middle[f"{shape} {mode} entries"],
                   "entries", None, ENTRIES[shape, mode]),
        ]  # fmt: skip
    return figures


# ── over event services ──────────────────────────────────────────────────────────────────

SERVERS: dict[str, type[Server]] = {"nats": NatsServer, "redis": RedisServer, "mqtt": Mosquitto}


def _services(effort: OrderingEffort, stage: OrderingStage, progress: Progress) -> list[Figure]:
    stages: dict[str, Callable[[OrderingEffort], Mapping[str, float]]] = {}
    sequencer = stage.site("services", *_alone()).address
    publisher, subscriber = (stage.worker(services.ends) for _ in range(2))
    for name in AGAINST_PLAIN:
        progress(f"starting {name}")
        url = _serving(name, stage)
        for side, at in (("plain", ""), ("ordered", sequencer)):
            for each in (publisher, subscriber):
                each.ask("open", name=f"{name} {side}", url=url, sequencer=at)
            subscriber.ask("subscribe", name=f"{name} {side}")
        stages[name] = partial(_both, name, publisher, subscriber)
    samples = in_rounds(effort.rounds, stages, effort, progress)
    return [_against_plain(name, samples) for name in AGAINST_PLAIN]


def _serving(name: str, stage: OrderingStage) -> str:
    place = stage.folder / name
    place.mkdir()
    if name in SERVERS:
        return stage.stack.enter_context(SERVERS[name](place).running()).url
    return stage.stack.enter_context(processes.broker(data=place)).address


def _both(
    name: str, publisher: Worker, subscriber: Worker, effort: OrderingEffort
) -> dict[str, float]:
    found = {}
    events = effort.events[name]
    lost = 0
    for side in (f"{name} plain", f"{name} ordered"):
        subscriber.ask("expect", name=side, events=events)
        began = publisher.ask("publish", name=side, events=events)["at"]
        came = subscriber.ask("came", name=side)
        found[side] = events / (came["at"] - began)
        lost += came["lost"]
    return found | {f"{name} lost": lost}


def _against_plain(name: str, samples: Samples) -> Figure:
    """The goal is a share of the plain rate of the same run."""
    middle = samples.medians()
    plain = middle[f"{name} plain"]
    # MQTT: the plain side has QoS 0, the ordered one QoS 1.
    return Figure(
        f"ordered events over {NAMES[name]} (floor: plain)",
        middle[f"{name} ordered"], "events/s", plain, AGAINST_PLAIN[name] * plain, "at least",
        counts=not mean(samples[f"{name} lost"]),
    )  # fmt: skip


# ── checkers ─────────────────────────────────────────────────────────────────────────────


def _checkers(count: int) -> Figure:
    from motet.testing.ordering.checkers import causality, notification_order
    from motet.testing.ordering.history import OrderHistory

    history = OrderHistory()
    for name, steps in sequencers.deliveries(count, CHECKED_SESSIONS, CHECKED_TOPICS):
        history.session(name, name).steps = steps
    began = time.perf_counter()
    verdicts = [checker.check(history) for checker in (notification_order, causality)]
    took_s = time.perf_counter() - began
    right = not any(verdict.violations for verdict in verdicts)
    name = f"checking order and causality of {count:,} deliveries of {CHECKED_TOPICS} topics"
    return Figure(name, took_s, "s", None, CHECKED_S, counts=right)
