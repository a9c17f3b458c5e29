"""What transactions cost: the dispatching scenario of paper 1, beside its floors.

Every broker, all clients together, the echo and the delaying hop are processes of their own. The
floor of a latency is the number of hops on its critical path times one hop of an echo over the same
kind of link, in the same run beside the same processes; with fsync, plus the number of commits on
the path times one fsync. Both numbers are in the name of the figure. Whatever is compared runs in
turn, in rounds of one run; medians are reported.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from motet.bench import floor, stand
from motet.bench.figures import Figure, Progress
from motet.broker.topology import Topology
from motet.experiments import echo, regular, waiting
from motet.experiments.dispatch_stand import Scene, scene
from motet.experiments.dispatching import APART, CAST
from motet.experiments.tx_paper import EVENTS_PER_BURST, INSTANCES_PER_BURST

LINK_S = 0.001
"""What every link takes, also those of clients: about what a data centre takes."""
LATENCIES = ("S-TX", "D-TX", "D-TX_NI")
FANOUT = 3
"""Of the trees: 3 brokers are a star, 9 are three levels, with the root at the top."""
MANY, FEW = 100_000, 10
"""Subscriptions, when a D-TX begins."""
MOST_CLIENTS = 40
FSYNC_BYTES = 300

# What we promise.
OVER_FLOOR = 2.0
AGAINST_WAIT = 4.0
GROWTH = {"S-TX": 1.9, "D-TX": 2.5}
"""The paper's own."""
BEGINNING = 1.2
STATIC_PER_S = 2000.0
DIP_PERCENT = 5.0


@dataclass(frozen=True)
class Effort:
    rounds: int
    each: int
    """Transactions, where they are sequential."""
    crowd_each: int
    """Of every coordinator, where there are many."""
    begins: int
    dips: int
    """Slices beside transactions, as fast as it goes; half as many at half the rate."""
    wait_runs: int


SHORT = Effort(rounds=2, each=20, crowd_each=60, begins=100, dips=12, wait_runs=20)
LONG = Effort(rounds=5, each=100, crowd_each=300, begins=500, dips=40, wait_runs=200)

Samples = dict[str, list[float]]


def run(short: bool, progress: Progress) -> list[Figure]:
    """All figures of transactions; `progress` is told what is measured now."""
    effort = SHORT if short else LONG
    with stand.folder() as folder:
        figures = _latencies(effort, folder, progress)
        figures += _overlays(effort, folder, progress)
        figures += _beginnings(effort, folder, progress)
        figures += _throughputs(effort, folder, progress)
        figures += _dip(effort, folder, progress)
    return figures


def fresh(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir()
    return place


def dispatch(on: Scene, approach: str, casts: int, each: int, **more: object) -> dict[str, float]:
    """Latency in the middle, in ms, and how many per second; all of them right."""
    found = on.load.ask(do="dispatch", approach=approach, casts=casts, each=each, **more)
    return {
        "ms": median(found["latency_ms"]),
        "per_s": found["per_s"],
        "wrong": found["wrong"],
        "aborted": found["aborted"],
    }


# ── latency ──────────────────────────────────────────────────────────────────────────────


def _latencies(effort: Effort, folder: Path, progress: Progress) -> list[Figure]:
    """Of 3 brokers, without and with fsync, each beside its floor; and BL-WAIT."""
    samples: Samples = defaultdict(list)
    tree = Topology.tree(3, FANOUT)
    with ExitStack() as stack:
        scenes = {
            durability: stack.enter_context(
                scene(tree, fresh(folder, durability), delay_s=LINK_S, durability=durability)
            )
            for durability in ("volatile", "fsync")
        }
        progress("the wait of BL-WAIT")
        wait = waiting.find(scenes["volatile"], effort.wait_runs)
        for number in range(1, effort.rounds + 1):
            progress(f"round {number} of {effort.rounds}: latency")
            for durability, on in scenes.items():
                samples[f"{durability} hop"].append(echo.hop_s(on.echo_port, 100, 0.005) * 1e3)
                for approach in LATENCIES:
                    ms = dispatch(on, approach, 1, effort.each)["ms"]
                    samples[f"{durability} {approach}"].append(ms)
            samples["fsync"].append(median(floor.fsyncs(folder, 50, FSYNC_BYTES, 100)) * 1e3)
            on = scenes["volatile"]
            for name, wait_ms in (("exact", wait.least_ms), ("paper", wait.as_in_paper_ms)):
                more = {"wait_s": wait_ms / 1e3}
                ms = dispatch(on, "BL-WAIT", 1, effort.each, **more)["ms"]
                samples[f"BL-WAIT {name}"].append(ms)
        paths = {a: [on.map().path(a, agent) for agent in (0, 1)] for a in LATENCIES}
    middle = {key: median(values) for key, values in samples.items()}
    figures = []
    for durability in ("volatile", "fsync"):
        for approach in LATENCIES:
            hops = mean(each.hops for each in paths[approach])
            syncs = mean(each.fsyncs for each in paths[approach]) * (durability == "fsync")
            least = hops * middle[f"{durability} hop"] + syncs * middle["fsync"]
            name = f"{approach}, 3 brokers, {LINK_S * 1e3:g} ms per link (floor: {hops:g} hops"
            name += f", {syncs:g} fsyncs)" if syncs else ", no fsync)"
            goal = None if approach == "D-TX_NI" else OVER_FLOOR * least
            figures.append(Figure(name, middle[f"{durability} {approach}"], "ms", least, goal))
    static = middle["volatile S-TX"]
    steps, exact = middle["BL-WAIT paper"] / static, middle["BL-WAIT exact"] / static
    figures += [
        Figure(
            f"S-TX per BL-WAIT that waits {wait.as_in_paper_ms:g} ms (the paper's steps of 50 ms)",
            steps, "times", None, AGAINST_WAIT, "at least",
        ),
        Figure(
            f"… that waits {wait.least_ms:.3g} ms (just enough for {wait.runs} runs)",
            exact, "times", sense="at least",
        ),
    ]  # fmt: skip
    return figures


def _overlays(effort: Effort, folder: Path, progress: Progress) -> list[Figure]:
    """How latency grows with the overlay."""
    samples: Samples = defaultdict(list)
    hops: dict[str, float] = {}
    with ExitStack() as stack:
        scenes = {
            count: stack.enter_context(
                scene(Topology.tree(count, FANOUT), fresh(folder, f"of-{count}"), delay_s=LINK_S)
            )
            for count in (1, 9)
        }
        for number in range(1, effort.rounds + 1):
            progress(f"round {number} of {effort.rounds}: 1 and 9 brokers")
            for count, on in scenes.items():
                for approach in GROWTH:
                    ms = dispatch(on, approach, 1, effort.each)["ms"]
                    samples[f"{approach} {count}"].append(ms)
        for count, on in scenes.items():
            for approach in GROWTH:
                paths = [on.map().path(approach, agent) for agent in (0, 1)]
                hops[f"{approach} {count}"] = mean(path.hops for path in paths)
    figures = []
    for approach, most in GROWTH.items():
        one, nine = (f"{approach} {count}" for count in (1, 9))
        name = f"{approach}, growth from 1 to 9 brokers (floor: {hops[nine]:g}/{hops[one]:g} hops)"
        value = median(samples[nine]) / median(samples[one])
        figures.append(Figure(name, value, "times", hops[nine] / hops[one], most))
    return figures


# ── many ─────────────────────────────────────────────────────────────────────────────────


def _beginnings(effort: Effort, folder: Path, progress: Progress) -> list[Figure]:
    """Does beginning depend on how much there is?"""
    took: Samples = defaultdict(list)
    one = Topology.line(1)
    with (
        scene(one, fresh(folder, "few")) as few,
        scene(one, fresh(folder, "many")) as many,
    ):
        few.load.ask(do="crowd", subscriptions=FEW)
        progress(f"{MANY:,} subscriptions")
        many.load.ask(do="crowd", subscriptions=MANY)
        for number in range(1, effort.rounds + 1):
            progress(f"round {number} of {effort.rounds}: beginning a D-TX")
            for name, on in (("few", few), ("many", many), ("many", many), ("few", few)):
                took[name].append(on.load.ask(do="begin", times=effort.begins)["p50_us"])
    less = median(took["few"])
    name = f"beginning a D-TX with {MANY:,} subscriptions (floor: with {FEW})"
    return [Figure(name, median(took["many"]), "µs", less, BEGINNING * less)]


def _throughputs(effort: Effort, folder: Path, progress: Progress) -> list[Figure]:
    static: list[float] = []
    dynamic: Samples = defaultdict(list)
    wrong = 0.0
    crowds = (MOST_CLIENTS // 2, MOST_CLIENTS)
    tree = Topology.tree(3, FANOUT)
    with (
        scene(Topology.line(1), fresh(folder, "one")) as one,
        scene(tree, fresh(folder, "three"), delay_s=LINK_S) as three,
    ):
        for number in range(1, effort.rounds + 1):
            progress(f"round {number} of {effort.rounds}: {MOST_CLIENTS} clients")
            found = dispatch(one, "S-TX", MOST_CLIENTS // CAST, effort.crowd_each)
            static.append(found["per_s"])
            wrong += found["wrong"]
            for clients in crowds:
                found = dispatch(three, "D-TX", clients // CAST, effort.crowd_each // 3)
                dynamic[str(clients)].append(found["per_s"])
    less, more = (median(dynamic[str(clients)]) for clients in crowds)
    return [
        Figure(
            f"S-TX on one broker, {MOST_CLIENTS} clients, without fsync",
            median(static), "tx/s", None, STATIC_PER_S, "at least", counts=not wrong,
        ),
        Figure(
            f"D-TX, {crowds[1]} clients, 3 brokers (floor: {crowds[0]} clients)",
            more, "tx/s", less, less, "at least",
        ),
    ]  # fmt: skip


def _dip(effort: Effort, folder: Path, progress: Progress) -> list[Figure]:
    """The rate of regular events while instances are dispatched, as fast as they go, and at half of
    that. `regular` says how it is measured, and why the floor is not zero."""
    with scene(Topology.tree(3, FANOUT), fresh(folder, "dip")) as on:
        full = regular.measure(on, ("S-TX", APART), effort.dips, progress=progress)
        alone = full.rate().middle
        half = regular.measure(on, ("S-TX",), effort.dips // 2, per_s=alone / 2, progress=progress)
    dip, least, slow = full.dip("S-TX"), full.dip(APART), half.dip("S-TX")
    spent, plainly = full.dip_by_cpu("S-TX"), full.dip_by_cpu(APART)
    right = full.kept and half.kept and not full.wrong("S-TX") + half.wrong("S-TX")
    pace = (
        f"{full.dispatched('S-TX')} in all, {INSTANCES_PER_BURST} per {EVENTS_PER_BURST:,} events"
    )
    return [
        Figure(
            f"regular events while S-TX runs, {pace} (floor: alone)",
            full.rate("S-TX").middle, "events/s", alone, sense="at least", counts=right,
        ),
        Figure(
            f"… dip, {_spread(dip)} (floor: the same without a transaction, {_spread(least)})",
            dip.middle, "%", least.middle, DIP_PERCENT, counts=right,
        ),
        Figure(
            f"… dip of events per CPU second, {_spread(spent)} (floor: as above; "
            f"{full.clients_share('S-TX'):.2g} % of all CPU are the clients that dispatch)",
            spent.middle, "%", plainly.middle, counts=right,
        ),
        Figure(
            f"… dip at half of that rate, {half.dispatched('S-TX')} S-TX, {_spread(slow)}",
            slow.middle, "%", None, DIP_PERCENT, counts=right,
        ),
    ]  # fmt: skip


def _spread(found: regular.Spread) -> str:
    return f"quartiles {found.low:.2g} to {found.high:.2g}"
