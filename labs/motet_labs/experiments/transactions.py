"""The whole evaluation of paper 1: four approaches to one scenario, in five experiments.

    report = TransactionsExperiment(FULL, progress).run(directory)

Every experiment runs in three settings: links with the same delay for all approaches; the same with
brokers that sync everything to disk; and without delays, where nine processes on a few cores mostly
measure their mutual interference. Approaches run in turn in the same overlay.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from motet.broker.folder.journal import VOLATILE
from motet.broker.overlay.topology import Topology
from motet.errors import MisuseError
from motet_labs import figures, processes
from motet_labs.experiments import paper1, regular
from motet_labs.experiments.dispatch import APART, APPROACHES, Scene, find_wait, scene
from motet_labs.experiments.regular import Impact
from motet_labs.experiments.report import ExperimentReport, PaperFigure, Section, table
from motet_labs.figures import Progress

PARTS = ("base", "overlay", "concurrency", "clients", "impact")
FANOUT = 3
"""Of the trees; the root of the overlay, which decides, is at the top."""


class Setting(NamedTuple):
    name: str
    delay_s: float
    durability: str


DELAYED = Setting("1 ms per link", 0.001, VOLATILE)
SYNCED = Setting("1 ms per link, fsync", 0.001, "fsync")
BARE = Setting("no delay", 0.0, VOLATILE)


@dataclass(frozen=True)
class TransactionsPlan:
    parts: tuple[str, ...] = PARTS
    settings: tuple[Setting, ...] = (DELAYED, SYNCED, BARE)
    beside: tuple[str, ...] = PARTS[:-1]
    """Parts that run in all settings; the others only in the first."""
    transactions: int = 100
    """Per coordinator; with many at a time, in total."""
    wait_runs: int = 50
    """At every step of the search for the wait of BL-WAIT."""
    rounds: int = 30
    """Of regular events, beside every approach."""
    quick: bool = False
    burst_events: int = paper1.EVENTS_PER_BURST
    """Regular events, after which instances are dispatched."""

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise MisuseError(f"unknown part {part!r}; choose from {', '.join(PARTS)}")


FULL = TransactionsPlan()
QUICK = TransactionsPlan(beside=("base",), transactions=12, wait_runs=6, rounds=8, quick=True)


@dataclass(frozen=True)
class ApproachRow:
    """One approach in one setting; `at` is what the experiment varies."""

    part: str
    setting: str
    at: int
    approach: str
    mean_ms: float
    p50_ms: float
    p99_ms: float
    per_s: float
    count: int
    wrong: int
    """Updates that went astray: only BL-WAIT may have any."""
    aborted: int
    wait_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            key: float(f"{value:.4g}") if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


class TransactionsExperiment:
    def __init__(self, plan: TransactionsPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._rows: list[ApproachRow] = []
        self._impact: Impact | None = None

    def run(self, out: Path) -> TransactionsReport:
        """Run everything, and write `transactions.json` into the directory."""
        began, clock, plan = datetime.now(UTC), time.monotonic(), self._plan
        machine = figures.machine()
        for part in plan.parts:
            if part == "impact":
                self._measure_impact()
                continue
            for setting in plan.settings if part in plan.beside else plan.settings[:1]:
                self._run(part, setting)
        took_s = time.monotonic() - clock
        rows = tuple(self._rows)
        report = TransactionsReport(began, took_s, machine, plan, rows, self._impact)
        report.save(out)
        return report

    def _run(self, part: str, setting: Setting) -> None:
        counts = paper1.BROKERS if part == "overlay" else (paper1.BASE_BROKERS,)
        how = {"delay_s": setting.delay_s, "durability": setting.durability}
        for count in counts:
            with (
                processes.folder() as folder,
                scene(Topology.tree(count, FANOUT), folder, **how) as on,  # type: ignore[arg-type]
            ):
                if part == "concurrency":
                    for threads in paper1.THREADS:
                        self._measure(part, setting, on, threads, threads=threads)
                elif part == "clients":
                    for casts in paper1.CASTS:
                        self._measure(part, setting, on, 4 * casts, casts=casts)
                else:
                    self._measure(part, setting, on, count)

    def _measure(
        self, part: str, setting: Setting, on: Scene, at: int, casts: int = 1, threads: int = 1
    ) -> None:
        """All approaches, one after the other."""
        self._progress(f"{part}, {setting.name}: {at}; how long must BL-WAIT wait?")
        wait = find_wait(on, self._plan.wait_runs, casts, threads)
        for approach in APPROACHES:
            self._progress(f"{part}, {setting.name}: {at}; {approach}")
            waits = (wait.as_in_paper_ms, wait.least_ms) if approach == "BL-WAIT" else (0.0,)
            for wait_ms in waits if part == "base" else waits[:1]:
                each = _each(self._plan.transactions, casts, threads)
                how = {"approach": approach, "casts": casts, "threads": threads, "each": each}
                found = on.load.ask("dispatch", **how, wait_s=wait_ms / 1e3)
                times = sorted(found["latency_ms"])
                p99_ms = times[len(times) * 99 // 100]
                latency = (mean(times), median(times), p99_ms, found["per_s"], len(times))
                went = (found["wrong"], found["aborted"], wait_ms)
                self._rows.append(ApproachRow(part, setting.name, at, approach, *latency, *went))

    def _measure_impact(self) -> None:
        """Regular events at full speed, alone and beside each approach. Without delays: they would
        not slow a stream down, but the one process that makes them would."""
        plan, tree = self._plan, Topology.tree(paper1.BASE_BROKERS, FANOUT)
        with processes.folder() as folder, scene(tree, folder) as on:
            wait = find_wait(on, plan.wait_runs)
            self._impact = regular.measure(
                on,
                (*APPROACHES, APART),
                plan.rounds,
                wait_s=wait.as_in_paper_ms / 1e3,
                burst_events=plan.burst_events,
                progress=lambda text: self._progress(f"impact: {text}"),
            )


def _each(transactions: int, casts: int, threads: int) -> int:
    """The number per cast, divided evenly among its threads."""
    share = max(4, transactions // casts)
    return -(-share // threads) * threads


# ── the report ───────────────────────────────────────────────────────────────────────────

TITLES = {
    "base": "Base comparison",
    "overlay": "Size of the overlay",
    "concurrency": "Concurrent transactions",
    "clients": "Number of clients",
    "impact": "Regular events beside transactions",
    "all": "All transactions",
}
VARIED = {"base": "brokers", "overlay": "brokers", "concurrency": "at a time", "clients": "clients"}
COLUMNS = ("approach", "mean, ms", "p50", "p99", "per s", "wait, ms", "astray", "aborted")


@dataclass(frozen=True)
class TransactionsReport(ExperimentReport):
    name = "transactions"
    title = "Transactions of several clients, measured"
    violation = "an update was misdirected, or a regular event was lost"

    plan: TransactionsPlan
    rows: tuple[ApproachRow, ...]
    impact: Impact | None

    @property
    def findings(self) -> list[PaperFigure]:
        return findings(self.rows, self.impact, self.plan.settings[0].name)

    @property
    def kept(self) -> bool:
        """With transactions every update arrived where it belongs, and no event was lost."""
        astray = any(row.wrong for row in self.rows if row.approach != "BL-WAIT")
        return not astray and (self.impact is None or self.impact.kept)

    def details(self, series: bool) -> dict[str, Any]:
        del series
        return {
            "quick": self.plan.quick,
            "transactions": self.plan.transactions,
            "wait_runs": self.plan.wait_runs,
            "settings": [setting._asdict() for setting in self.plan.settings],
            "rows": [row.to_json() for row in self.rows],
            "impact": None if self.impact is None else self.impact.to_json(),
        }

    @property
    def setting(self) -> str:
        plan, about = self.plan, self.machine
        settings = "; ".join(setting.name for setting in plan.settings)
        load = "/".join(str(each) for each in about["load_average"])
        return (
            f"The dispatching scenario of paper 1: E begins, D dispatches, two agents in turn; "
            f"four clients, five operations. {plan.transactions} transactions per row (the "
            f"paper: {paper1.TRANSACTIONS:,}). Settings: {settings}; the delay applies to every "
            f"link, also those of clients, in all approaches. The wait of BL-WAIT was found by "
            f"bisection, with {plan.wait_runs} runs per step, and rounded up to the paper's "
            f"steps of 50 ms. Latencies are means, as in the paper. {about['cpu']}, "
            f"{about['cores']} cores, load {load}; {self.took_s:.0f} s."
        )

    def sections(self) -> list[Section]:
        there = {each.part for each in self.findings}
        before = {"impact": [self._how_impact()]}
        return [
            Section(part, TITLES[part], before.get(part, []), self._tables(part))
            for part in (*self.plan.parts, "all")
            if part in there
        ]

    def _how_impact(self) -> str:
        return (
            f"One stream of exactly-once events passes all brokers at full speed. "
            f"{paper1.INSTANCES_PER_BURST} instances are dispatched after every "
            f"{self.plan.burst_events:,} events, as in the paper, in {self.plan.rounds} time "
            f"slices per approach; each slice is compared with those just before and after it, "
            f"which have no dispatching. Drops are medians. All processes share "
            f"{self.machine['cores']} cores, so the CPU time of every process lowers the rate, "
            f"including that of the dispatching clients; “{APART}” is the same five operations of "
            f"the same clients without a transaction. In the paper every broker and every client "
            f"had two cores of its own."
        )

    def _tables(self, part: str) -> list[str]:
        body = []
        for row in (row for row in self.rows if row.part == part):
            times = [f"{each:.3g}" for each in (row.mean_ms, row.p50_ms, row.p99_ms, row.per_s)]
            wait = f"{row.wait_ms:.3g}" if row.wait_ms else "–"
            went = [wait, str(row.wrong), str(row.aborted)]
            body.append([row.setting, str(row.at), row.approach, *times, *went])
        return [table(["setting", VARIED[part], *COLUMNS], body)] if body else []


# ── figures ──────────────────────────────────────────────────────────────────────────────

DIP_PERCENT = 5.0
"""A smaller drop of the regular rate counts as none."""


def findings(rows: Sequence[ApproachRow], impact: Impact | None, setting: str) -> list[PaperFigure]:
    """Of the first setting; the others are in the tables."""

    def part(name: str) -> list[ApproachRow]:
        return [row for row in rows if (row.setting, row.part) == (setting, name)]

    found = _of_base(part("base")) + _of_overlay(_known(part("overlay")))
    found += _of_growth("concurrency", "10 at a time", _known(part("concurrency")), 1, 10)
    found += _of_growth("clients", "40 clients", _known(part("clients")), 4, 40)
    found += _of_many(_known(part("clients")))
    found += _of_impact(impact)
    bound = [row for row in rows if row.approach != "BL-WAIT"]
    astray, ran = sum(row.wrong for row in bound), sum(row.count for row in bound)
    if rows:
        name = f"misdirected updates in {ran:,} transactions"
        found.append(PaperFigure("all", name, astray, "", "none", not astray))
    return found


Known = dict[tuple[str, int], ApproachRow]


def _known(rows: Iterable[ApproachRow]) -> Known:
    """By approach and varied quantity. The first one counts: of BL-WAIT, with the paper's steps."""
    known: Known = {}
    for row in rows:
        known.setdefault((row.approach, row.at), row)
    return known


def _about(said: float | None, digits: str = "g") -> str:
    return f"about {said:{digits}}" if said else ""


def _of_base(rows: list[ApproachRow]) -> list[PaperFigure]:
    if not rows:
        return []
    known = {row.approach: row for row in reversed(rows)}
    found = []
    for approach in APPROACHES:
        value, said = known[approach].mean_ms, _about(paper1.BASE_MS[approach])
        found.append(PaperFigure("base", f"{approach}, latency", value, "ms", said))
    for approach in APPROACHES:
        value, said = known[approach].per_s, _about(paper1.BASE_PER_S[approach], ".2g")
        found.append(PaperFigure("base", f"{approach}, one by one", value, "/s", said))
    waits = [row for row in rows if row.approach == "BL-WAIT"]
    for row in waits:
        ratio = row.p50_ms / known["S-TX"].p50_ms  # those astray would count as slow
        least = paper1.STATIC_AGAINST_WAIT if row is waits[0] else None
        name = f"S-TX per BL-WAIT that waits {row.wait_ms:.3g} ms"
        name += ", by the paper's steps" if least else ", the least"
        holds = None if least is None else ratio >= least
        found.append(PaperFigure("base", name, ratio, "times", _about(least), holds))
    return found


def _of_overlay(known: Known) -> list[PaperFigure]:
    found = []
    for approach in APPROACHES:
        one, nine = known.get((approach, 1)), known.get((approach, 9))
        if one is not None and nine is not None:
            most = paper1.OVERLAY_GROWTH.get(approach)
            name = f"{approach}, latency of 9 brokers per that of 1"
            found.append(_growth("overlay", name, nine.mean_ms / one.mean_ms, most=most))
    for (approach, count), ms in paper1.OVERLAY_MS.items():
        row = known.get((approach, count))
        if row is not None:
            name = f"{approach}, {count} broker{'s' if count > 1 else ''}"
            found.append(PaperFigure("overlay", name, row.mean_ms, "ms", _about(ms)))
    return found


def _growth(
    part: str, name: str, ratio: float, *, most: float | None = None, least: float | None = None
) -> PaperFigure:
    holds = ratio <= most if most is not None else ratio >= least if least is not None else None
    return PaperFigure(part, name, ratio, "times", _about(most or least), holds)


GROWTHS: dict[str, tuple[Mapping[str, float], Mapping[str, float]]] = {
    "concurrency": (paper1.THREADS_LATENCY, paper1.THREADS_RATE),
    "clients": (paper1.CLIENTS_LATENCY, paper1.CLIENTS_RATE),
}


def _of_growth(part: str, what: str, known: Known, low: int, high: int) -> list[PaperFigure]:
    found = []
    latencies, rates = GROWTHS[part]
    for approach in APPROACHES:
        few, many = known.get((approach, low)), known.get((approach, high))
        if few is not None and many is not None:
            name, most, least = f"{approach}, {what}", latencies.get(approach), rates.get(approach)
            longer, faster = many.mean_ms / few.mean_ms, many.per_s / few.per_s
            found.append(_growth(part, f"{name}: latency", longer, most=most))
            found.append(_growth(part, f"{name}: throughput", faster, least=least))
    return found


def _of_many(known: Known) -> list[PaperFigure]:
    half, all_of_them = known.get(("D-TX", 20)), known.get(("D-TX", 40))
    if half is None or all_of_them is None:
        return []
    ratio = all_of_them.per_s / half.per_s
    name = "D-TX, throughput of 40 clients per that of 20"
    return [PaperFigure("clients", name, ratio, "times", "falls", ratio >= 1)]


def _of_impact(impact: Impact | None) -> list[PaperFigure]:
    if impact is None:
        return []
    rate = impact.rate()
    found = [PaperFigure("impact", "regular events, nothing beside them", rate.middle, "/s")]
    for approach in impact.approaches:
        dip, count = impact.dip(approach), impact.dispatched(approach)
        name = f"drop of the regular rate beside {approach}: {count} instances"
        name += f", {dip.quartiles}"
        holds = dip.middle <= DIP_PERCENT if approach == "S-TX" else None
        said = paper1.IMPACT.get(approach, "")
        found.append(PaperFigure("impact", name, dip.middle, "%", said, holds))
    for approach in impact.approaches:
        name = f"the same beside {approach}, of events per CPU second"
        found.append(PaperFigure("impact", name, impact.dip_by_cpu(approach).middle, "%"))
    wrong = impact.lost + impact.disordered + impact.doubled
    name = "regular events lost, doubled or out of order"
    return [*found, PaperFigure("impact", name, wrong, "", holds=not wrong)]
