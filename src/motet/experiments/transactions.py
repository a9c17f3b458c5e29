"""The whole evaluation of paper 1: four approaches to one scenario, in five experiments.

    report = Experiment(FULL, directory, progress).report()

Every experiment runs in three settings: links that take time, the same for all approaches; the same
with brokers that sync everything to disk; and without delays, where nine processes on a few cores
measure how they get in each other's way. Approaches run in turn in the same overlay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median
from typing import Any

from motet.bench import figures, stand
from motet.broker.topology import Topology
from motet.errors import MisuseError
from motet.experiments import regular, tx_findings, tx_paper, waiting
from motet.experiments.dispatch_stand import Scene, scene
from motet.experiments.dispatching import APART, APPROACHES
from motet.experiments.findings import Finding
from motet.experiments.regular import Impact
from motet.experiments.tx_findings import Row
from motet.runtime.journal import VOLATILE

PARTS = ("base", "overlay", "concurrency", "clients", "impact")
FANOUT = 3
"""Of the trees; the root of the overlay decides, and stands at the top."""

Told = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    name: str
    delay_s: float
    durability: str


DELAYED = Setting("1 ms per link", 0.001, VOLATILE)
SYNCED = Setting("1 ms per link, fsync", 0.001, "fsync")
BARE = Setting("no delay", 0.0, VOLATILE)


@dataclass(frozen=True)
class Plan:
    parts: tuple[str, ...] = PARTS
    settings: tuple[Setting, ...] = (DELAYED, SYNCED, BARE)
    beside: tuple[str, ...] = PARTS[:-1]
    """Parts that run in all settings; the others only in the first."""
    transactions: int = 100
    """Of every coordinator; with many at a time, as many in all."""
    wait_runs: int = 50
    """At every step of the search for the wait of BL-WAIT."""
    rounds: int = 30
    """Of regular events, beside every approach."""
    quick: bool = False

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise MisuseError(f"{part!r} is no part of it; choose of {', '.join(PARTS)}")


FULL = Plan()
QUICK = Plan(beside=("base",), transactions=12, wait_runs=6, rounds=8, quick=True)


@dataclass(frozen=True)
class Report:
    plan: Plan
    rows: tuple[Row, ...]
    impact: Impact | None
    began: datetime
    took_s: float
    machine: dict[str, Any]

    @property
    def findings(self) -> list[Finding]:
        return tx_findings.findings(self.rows, self.impact, self.plan.settings[0].name)

    @property
    def kept(self) -> bool:
        """With transactions every update went where it belongs, and no event was lost."""
        astray = any(row.wrong for row in self.rows if row.approach != "BL-WAIT")
        return not astray and (self.impact is None or self.impact.kept)

    def to_json(self) -> dict[str, Any]:
        return {
            "experiment": "transactions",
            "quick": self.plan.quick,
            "date": self.began.isoformat(timespec="seconds"),
            "seconds": round(self.took_s, 1),
            "machine": self.machine,
            "kept": self.kept,
            "transactions": self.plan.transactions,
            "wait_runs": self.plan.wait_runs,
            "settings": [asdict(setting) for setting in self.plan.settings],
            "results": [finding.to_json() for finding in self.findings],
            "rows": [row.to_json() for row in self.rows],
            "impact": None if self.impact is None else self.impact.to_json(),
        }


class Experiment:
    def __init__(self, plan: Plan, out: Path, progress: Told) -> None:
        self.plan = plan
        self._out = out
        self._progress = progress
        self._rows: list[Row] = []
        self._impact: Impact | None = None

    def report(self) -> Report:
        """Run it all, and write `transactions.json` into the directory."""
        began, clock = datetime.now(UTC), time.monotonic()
        machine = figures.machine()
        for part in self.plan.parts:
            if part == "impact":
                self._measure_impact()
                continue
            everywhere = part in self.plan.beside
            for setting in self.plan.settings if everywhere else self.plan.settings[:1]:
                self._run(part, setting)
        took_s = time.monotonic() - clock
        rows = tuple(self._rows)
        report = Report(self.plan, rows, self._impact, began, took_s, machine)
        self._out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False)
        (self._out / "transactions.json").write_text(text + "\n", encoding="utf-8")
        return report

    def _run(self, part: str, setting: Setting) -> None:
        counts = tx_paper.BROKERS if part == "overlay" else (tx_paper.BASE_BROKERS,)
        for count in counts:
            with stand.folder() as folder, ExitStack() as stack:
                on = stack.enter_context(
                    scene(
                        Topology.tree(count, FANOUT),
                        folder,
                        delay_s=setting.delay_s,
                        durability=setting.durability,
                    )
                )
                if part == "concurrency":
                    for threads in tx_paper.THREADS:
                        self._measure(part, setting, on, threads, threads=threads)
                elif part == "clients":
                    for casts in tx_paper.CASTS:
                        self._measure(part, setting, on, 4 * casts, casts=casts)
                else:
                    self._measure(part, setting, on, count)

    def _measure(
        self, part: str, setting: Setting, on: Scene, at: int, casts: int = 1, threads: int = 1
    ) -> None:
        """All approaches, one after the other."""
        self._progress(f"{part}, {setting.name}: {at}; how long must BL-WAIT wait?")
        wait = waiting.find(on, self.plan.wait_runs, casts, threads)
        for approach in APPROACHES:
            self._progress(f"{part}, {setting.name}: {at}; {approach}")
            waits = (wait.as_in_paper_ms, wait.least_ms) if approach == "BL-WAIT" else (0.0,)
            if part != "base":
                waits = waits[:1]
            for wait_ms in waits:
                found = on.load.ask(
                    do="dispatch",
                    approach=approach,
                    casts=casts,
                    threads=threads,
                    each=_each(self.plan.transactions, casts, threads),
                    wait_s=wait_ms / 1e3,
                )
                times = sorted(found["latency_ms"])
                self._rows.append(
                    Row(
                        part=part,
                        setting=setting.name,
                        at=at,
                        approach=approach,
                        mean_ms=mean(times),
                        p50_ms=median(times),
                        p99_ms=times[len(times) * 99 // 100],
                        per_s=found["per_s"],
                        count=len(times),
                        wrong=found["wrong"],
                        aborted=found["aborted"],
                        wait_ms=wait_ms,
                    )
                )

    def _measure_impact(self) -> None:
        """Regular events as fast as they go, alone and beside each approach. Without delays:
        they would not slow a stream down, but the one process that makes them would."""
        with (
            stand.folder() as folder,
            scene(Topology.tree(tx_paper.BASE_BROKERS, FANOUT), folder) as on,
        ):
            wait = waiting.find(on, self.plan.wait_runs)
            self._impact = regular.measure(
                on,
                (*APPROACHES, APART),
                self.plan.rounds,
                wait_s=wait.as_in_paper_ms / 1e3,
                progress=lambda text: self._progress(f"impact: {text}"),
            )


def _each(transactions: int, casts: int, threads: int) -> int:
    """How many for every cast: no thread of it has less to do than another."""
    share = max(4, transactions // casts)
    return -(-share // threads) * threads
