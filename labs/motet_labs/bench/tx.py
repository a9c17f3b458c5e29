"""The cost of transactions: the dispatching scenario of paper 1, beside its floors.

Every broker, all clients together, the echo and the delaying hop are processes of their own. The
floor of a latency is the number of hops on its critical path times one hop of an echo over the same
kind of link, in the same run beside the same processes; with fsync, plus the number of commits on
the path times one fsync. Both numbers are in the name of the figure. Compared values are measured
in turn, in rounds of one run; medians are reported.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from motet.broker.overlay.topology import Topology
from motet_labs import processes
from motet_labs.bench import floor
from motet_labs.experiments import regular
from motet_labs.experiments.dispatch import APART, CAST_SIZE, Scene, find_wait, scene
from motet_labs.experiments.paper1 import EVENTS_PER_BURST, INSTANCES_PER_BURST
from motet_labs.figures import Figure, Progress, Size, in_rounds

LINK_S = 0.001
"""The latency of every link, including those of clients: about that of a data centre."""
LATENCIES = ("S-TX", "D-TX", "D-TX_NI")
FANOUT = 3
"""Of the trees: 3 brokers are a star, 9 are three levels, with the root at the top."""
FEW = 10
"""Number of subscriptions when a D-TX begins."""
FSYNC_BYTES = 300

# Goals.
OVER_FLOOR = 2.0
AGAINST_WAIT = 4.0
GROWTH = {"S-TX": 1.9, "D-TX": 2.5}
"""The paper's own results."""
BEGINNING = 1.2
STATIC_PER_S = 2000.0
DIP_PERCENT = 5.0


class TxEffort(NamedTuple):
    rounds: int
    each: int
    """Sequential transactions."""
    crowd_each: int
    """Transactions per coordinator, where there are many."""
    begins: int
    dips: int
    """Slices beside transactions at full speed; half as many at half the rate."""
    wait_runs: int
    large: int = 9
    """Brokers of the large overlay, which is compared with one broker."""
    subscriptions: int = 100_000
    """Number of subscriptions when a D-TX begins."""
    clients: int = 40
    """The maximum, in total."""
    echoes: int = 100
    burst_events: int = EVENTS_PER_BURST
    """Regular events, after which instances are dispatched."""


EFFORTS = {
    Size.LEAST: TxEffort(1, 1, 3, 3, 2, 1, 3, 100, 2 * CAST_SIZE, echoes=5, burst_events=500),
    Size.SHORT: TxEffort(rounds=2, each=20, crowd_each=60, begins=100, dips=12, wait_runs=20),
    Size.LONG: TxEffort(rounds=5, each=100, crowd_each=300, begins=500, dips=40, wait_runs=200),
}


def run(size: Size, progress: Progress) -> list[Figure]:
    figures: list[Figure] = []
    for part in (_latencies, _overlays, _beginnings, _throughputs, _dip):
        with processes.folder() as folder, ExitStack() as stack:
            figures += part(EFFORTS[size], TxStage(folder, stack), progress)
    return figures


class TxStage(NamedTuple):
    """Creates scenes, which all end together."""

    folder: Path
    stack: ExitStack

    def scene(self, brokers: int, name: str, **how: Any) -> Scene:
        place = self.folder / name
        place.mkdir()
        return self.stack.enter_context(scene(Topology.tree(brokers, FANOUT), place, **how))


def dispatch(on: Scene, approach: str, casts: int, each: int, **more: object) -> dict[str, Any]:
    """The result of dispatching `each` instances per cast, and their median latency in ms."""
    found = on.load.ask("dispatch", approach=approach, casts=casts, each=each, **more)
    return found | {"ms": median(found["latency_ms"])}


def _latencies(effort: TxEffort, stage: TxStage, progress: Progress) -> list[Figure]:
    """With 3 brokers, without and with fsync, each beside its floor; and BL-WAIT."""
    kinds = ("volatile", "fsync")
    scenes = {kind: stage.scene(3, kind, delay_s=LINK_S, durability=kind) for kind in kinds}
    volatile = scenes["volatile"]
    progress("the wait of BL-WAIT")
    wait = find_wait(volatile, effort.wait_runs)

    def measure(effort: TxEffort) -> dict[str, float]:
        found: dict[str, float] = {}
        for kind, on in scenes.items():
            hop_s = floor.half_round_trip_s(on.echo_port, effort.echoes, 0.005)
            found[f"{kind} hop"] = hop_s * 1e3
            for approach in LATENCIES:
                found[f"{kind} {approach}"] = dispatch(on, approach, 1, effort.each)["ms"]
        synced_s = floor.fsyncs(stage.folder, effort.echoes, FSYNC_BYTES, 100)
        found["fsync"] = median(synced_s) * 1e3
        for name, ms in (("exact", wait.least_ms), ("paper", wait.as_in_paper_ms)):
            waited = dispatch(volatile, "BL-WAIT", 1, effort.each, wait_s=ms / 1e3)
            found[f"BL-WAIT {name}"] = waited["ms"]
        return found

    middle = in_rounds(effort.rounds, {"latency": measure}, effort, progress).medians()
    figures = []
    for kind in kinds:
        for approach in LATENCIES:
            paths = volatile.paths(approach)
            hops = mean(each.hops for each in paths)
            syncs = mean(each.fsyncs for each in paths) * (kind == "fsync")
            least = hops * middle[f"{kind} hop"] + syncs * middle["fsync"]
            name = f"{approach}, 3 brokers, {LINK_S * 1e3:g} ms per link (floor: {hops:g} hops"
            name += f", {syncs:g} fsyncs)" if syncs else ", no fsync)"
            goal = None if approach == "D-TX_NI" else OVER_FLOOR * least
            figures.append(Figure(name, middle[f"{kind} {approach}"], "ms", least, goal))
    static = middle["volatile S-TX"]
    steps, exact = middle["BL-WAIT paper"] / static, middle["BL-WAIT exact"] / static
    return [
        *figures,
        Figure(
            f"S-TX per BL-WAIT that waits {wait.as_in_paper_ms:g} ms (the paper's steps of 50 ms)",
            steps, "times", None, AGAINST_WAIT, "at least",
        ),
        Figure(f"… that waits {wait.least_ms:.3g} ms (just enough for {wait.runs} runs)",
               exact, "times", sense="at least"),
    ]  # fmt: skip


def _overlays(effort: TxEffort, stage: TxStage, progress: Progress) -> list[Figure]:
    """How latency grows with the overlay."""
    counts = (1, effort.large)
    scenes = {count: stage.scene(count, f"of-{count}", delay_s=LINK_S) for count in counts}

    def measure(effort: TxEffort) -> dict[str, float]:
        return {
            f"{approach} {count}": dispatch(on, approach, 1, effort.each)["ms"]
            for count, on in scenes.items()
            for approach in GROWTH
        }

    stages = {f"1 and {effort.large} brokers": measure}
    middle = in_rounds(effort.rounds, stages, effort, progress).medians()
    figures = []
    for approach, most in GROWTH.items():
        one, many = (middle[f"{approach} {count}"] for count in counts)
        few, more = (mean(path.hops for path in scenes[n].paths(approach)) for n in counts)
        name = f"{approach}, growth from 1 to {effort.large} brokers"
        name += f" (floor: {more:g}/{few:g} hops)"
        figures.append(Figure(name, many / one, "times", more / few, most))
    return figures


def _beginnings(effort: TxEffort, stage: TxStage, progress: Progress) -> list[Figure]:
    """Whether the cost of beginning depends on the number of subscriptions."""
    scenes = {"few": stage.scene(1, "few"), "many": stage.scene(1, "many")}
    progress(f"{effort.subscriptions:,} subscriptions")
    scenes["few"].load.ask("crowd", subscriptions=FEW)
    scenes["many"].load.ask("crowd", subscriptions=effort.subscriptions)

    def measure(effort: TxEffort) -> dict[str, float]:
        def begin(name: str) -> float:
            took_us: float = scenes[name].load.ask("begin", times=effort.begins)["p50_us"]
            return took_us

        few, many, more, less = map(begin, ("few", "many", "many", "few"))
        return {"few": mean((few, less)), "many": mean((many, more))}

    stages = {"beginning a D-TX": measure}
    middle = in_rounds(effort.rounds, stages, effort, progress).medians()
    name = f"beginning a D-TX with {effort.subscriptions:,} subscriptions (floor: with {FEW})"
    return [Figure(name, middle["many"], "µs", middle["few"], BEGINNING * middle["few"])]


def _throughputs(effort: TxEffort, stage: TxStage, progress: Progress) -> list[Figure]:
    half, clients = effort.clients // 2, effort.clients
    one, three = stage.scene(1, "one"), stage.scene(3, "three", delay_s=LINK_S)

    def measure(effort: TxEffort) -> dict[str, float]:
        found = dispatch(one, "S-TX", clients // CAST_SIZE, effort.crowd_each)
        dynamic = {
            name: dispatch(three, "D-TX", count // CAST_SIZE, effort.crowd_each // 3)["per_s"]
            for name, count in (("half", half), ("all", clients))
        }
        return dynamic | {"static": found["per_s"], "wrong": found["wrong"]}

    samples = in_rounds(effort.rounds, {f"{clients} clients": measure}, effort, progress)
    middle = samples.medians()
    less, wrong = middle["half"], sum(samples["wrong"])
    return [
        Figure(f"S-TX on one broker, {clients} clients, without fsync",
               middle["static"], "tx/s", None, STATIC_PER_S, "at least", counts=not wrong),
        Figure(f"D-TX, {clients} clients, 3 brokers (floor: {half} clients)",
               middle["all"], "tx/s", less, less, "at least"),
    ]  # fmt: skip


def _dip(effort: TxEffort, stage: TxStage, progress: Progress) -> list[Figure]:
    """The rate of regular events while instances are dispatched, at full speed and at half of that.
    `regular` says how it is measured, and why the floor is not zero."""
    on = stage.scene(3, "dip")
    measure = partial(regular.measure, on, burst_events=effort.burst_events, progress=progress)
    full = measure(("S-TX", APART), effort.dips)
    alone = full.rate().middle
    half = measure(("S-TX",), effort.dips // 2, per_s=alone / 2)
    dip, least, slow = full.dip("S-TX"), full.dip(APART), half.dip("S-TX")
    spent, plainly = full.dip_by_cpu("S-TX"), full.dip_by_cpu(APART)
    right = full.kept and half.kept and not full.wrong("S-TX") + half.wrong("S-TX")
    often = f"{INSTANCES_PER_BURST} per {effort.burst_events:,} events"
    often = f"{full.dispatched('S-TX')} in all, {often}"
    return [
        Figure(f"regular events while S-TX runs, {often} (floor: alone)",
               full.rate("S-TX").middle, "events/s", alone, sense="at least", counts=right),
        Figure(f"… dip, {dip.quartiles} (floor: the same without a transaction, {least.quartiles})",
               dip.middle, "%", least.middle, DIP_PERCENT, counts=right),
        Figure(f"… dip of events per CPU second, {spent.quartiles} (floor: as above; "
               f"{full.clients_share('S-TX'):.2g} % of all CPU are the clients that dispatch)",
               spent.middle, "%", plainly.middle, counts=right),
        Figure(f"… dip at half of that rate, {half.dispatched('S-TX')} S-TX, {slow.quartiles}",
               slow.middle, "%", None, DIP_PERCENT, counts=right),
    ]  # fmt: skip
