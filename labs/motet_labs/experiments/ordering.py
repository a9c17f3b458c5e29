"""The whole evaluation of paper 4: one order across topics, over five sites far from each other.

    report = OrderingExperiment(FULL, progress).run(directory)

Every load runs twice: with real processes, and in virtual time over the same links.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from motet.placement.graph import TopicPlacement
from motet.placement.prediction import PlacementForecast, predict
from motet.placement.search import best_placement
from motet.protocol.sequencing.messages import PAIRS
from motet_labs import figures, processes
from motet_labs.experiments import as_published, our_schedules, paper4, stamp_sizes
from motet_labs.experiments.ordering_plan import (
    BEYOND,
    PLACEMENT,
    PUBLISHED,
    RATES,
    SIZES,
    SUBSCRIPTIONS,
    OrderingPlan,
)
from motet_labs.experiments.ordering_report import (
    BY_NUMBER,
    PLANNED,
    LineRow,
    OrderingReport,
    RunsRow,
    ScheduleRow,
)
from motet_labs.experiments.regions import Regions, by_number, exponent, mean_delays
from motet_labs.experiments.site_line import LineRun, SiteLine, site_line
from motet_labs.experiments.virtual_line import VirtualLine
from motet_labs.figures import Progress

TROUBLE: dict[str, as_published.RandomEffort] = {
    "nothing changes": as_published.RandomEffort(changes=0.0),
    "subscriptions change": as_published.RandomEffort(),
    "a tenth of the answers is lost": as_published.RandomEffort(changes=0.0, repeats=0.1),
}
OURS = "ours, in the simulator"
CALM_CORES = 0.3
"""Of other processes: what the kernel does for ours counts among these, too."""


class LineSetting(NamedTuple):
    """Who subscribes to what, and where topics live."""

    shape: str
    mode: str
    each: int
    placed: str


class OrderingExperiment:
    def __init__(self, plan: OrderingPlan, progress: Progress) -> None:
        self._plan = plan
        self._tell = progress
        self._report: dict[str, list[Any]] = {
            "sizes": [], "runs": [], "schedules": [], "rows": [], "floors": [],
        }  # fmt: skip
        self._part_s: dict[str, float] = {}
        self._skipped: list[str] = []
        self._began = time.monotonic()
        self._regions = cache(self._regions_of)
        self._streams = cache(self._streams_of)
        self._placement = cache(self._placement_of)

    def run(self, out: Path) -> OrderingReport:
        """Run everything, and write `ordering.json` into the directory."""
        began, self._began = datetime.now(UTC), time.monotonic()
        machine = figures.machine()
        measure: dict[str, Callable[[], None]] = {
            SIZES: self._sizes,
            PUBLISHED: self._published,
            RATES: self._rates,
            SUBSCRIPTIONS: self._subscriptions,
            PLACEMENT: self._placements,
        }
        for part, work in measure.items():
            if part in self._plan.parts:
                clock = time.monotonic()
                work()
                self._part_s[part] = round(time.monotonic() - clock, 1)
        report = OrderingReport(
            began,
            time.monotonic() - self._began,
            machine,
            plan=self._plan,
            part_s=self._part_s,
            skipped=tuple(self._skipped),
            **{name: tuple(rows) for name, rows in self._report.items()},
        )
        report.save(out)
        return report

    # ── without processes ────────────────────────────────────────────────────────────────

    def _sizes(self) -> None:
        plan = self._plan
        with processes.folder() as folder:
            found = stamp_sizes.measure(plan.sizes, plan.shapes, folder, self._tell)
        self._report["sizes"] += found

    def _published(self) -> None:
        """The algorithm as published, and ours, in the same schedules and in random runs."""
        for name, schedule in as_published.SCHEDULES.items():
            self._tell(f"published: {name}")
            told = {key: schedule(way) for key, way in as_published.READINGS.items()}
            for key, outcome in told.items():
                row = ScheduleRow(name, f"as published, {key}", outcome.stalled, outcome.inverted)
                self._report["schedules"].append(row)
            ours = our_schedules.violations(name)
            self._report["schedules"].append(ScheduleRow(name, OURS, (), tuple(ours)))
        self._random_runs()

    def _random_runs(self) -> None:
        for reading, way in as_published.READINGS.items():
            for trouble, effort in TROUBLE.items():
                self._tell(f"published: {self._plan.runs} runs, {reading}, {trouble}")
                outcomes = [
                    as_published.random_run(seed, way, effort) for seed in range(self._plan.runs)
                ]
                stalled = sum(bool(each.stalled) for each in outcomes)
                inverted = sum(bool(each.inverted) for each in outcomes)
                who = f"as published, {reading}"
                found = RunsRow(who, trouble, len(outcomes), stalled, inverted)
                self._report["runs"].append(found)
        self._tell(f"published: {self._plan.seeds} runs of ours, with all faults")
        bad = sum(bool(our_schedules.violations_of_seed(seed)) for seed in range(self._plan.seeds))
        found = RunsRow(OURS, "all faults of the simulator", self._plan.seeds, 0, bad)
        self._report["runs"].append(found)

    # ── what sites need ──────────────────────────────────────────────────────────────────

    def _regions_of(self, shape: str) -> Regions:
        return Regions(exponent(shape, self._plan.topics), self._plan.topics)

    def _streams_of(self, shape: str, each: int) -> list[tuple[int, ...]]:
        return self._regions(shape).subscriptions(self._plan.clients, each, self._plan.draw)

    def _placement_of(self, setting: LineSetting) -> tuple[TopicPlacement, PlacementForecast]:
        shape, mode, each, placed = setting
        graph = self._regions(shape).graph(self._streams(shape, each))
        delays = mean_delays(graph.sites)
        placement = by_number(self._plan.topics)
        if placed == PLANNED:
            self._tell(f"the planner places {self._plan.topics:,} topics, {shape}, {mode}")
            placement = best_placement(graph, delays, mode, current=placement)
        return placement, predict(graph, placement, delays, mode)

    # ── loads ────────────────────────────────────────────────────────────────────────────

    def _rates(self) -> None:
        plan = self._plan
        for shape in plan.shapes:
            for draw in range(plan.draws):
                self._tell(f"rates, {shape}: the floor of draw {draw}")
                regions = self._regions(shape)
                graph = regions.graph(regions.subscriptions(plan.clients, plan.each, draw))
                told = predict(graph, by_number(plan.topics), mean_delays(graph.sites), PAIRS)
                self._report["floors"].append((shape, draw, told.mean_ms))
            setting = LineSetting(shape, PAIRS, plan.each, BY_NUMBER)
            self._loads(RATES, setting, plan.rates, plan.beyond)

    def _subscriptions(self) -> None:
        plan = self._plan
        for shape in plan.shapes:
            for each in plan.more:
                setting = LineSetting(shape, PAIRS, each, BY_NUMBER)
                self._loads(SUBSCRIPTIONS, setting, (plan.fixed_rate,))

    def _placements(self) -> None:
        plan = self._plan
        for shape, mode in plan.cases:
            for placed in (BY_NUMBER, PLANNED):
                setting = LineSetting(shape, mode, plan.each, placed)
                self._loads(PLACEMENT, setting, plan.rates[-1:])

    def _loads(
        self,
        part: str,
        setting: LineSetting,
        rates: tuple[int, ...],
        beyond: tuple[int, ...] = (),
    ) -> None:
        """The same sites for all these rates; and for further ones, until they do not keep up."""
        what = ", ".join((part, setting.shape, setting.mode, f"{setting.each} topics per client"))
        if self._spent_s() > self._plan.limit_s:
            self._skipped.append(f"{what}, {setting.placed}")
            return
        placement, forecast = self._placement(setting)
        self._tell(f"{what}: {self._plan.clients:,} clients, in virtual time")
        regions, streams = (
            self._regions(setting.shape),
            self._streams(setting.shape, setting.each),
        )
        virtual = VirtualLine(regions, placement, setting.mode, streams)
        self._tell(f"{what}, {setting.placed}: starting {paper4.SITES} sites")
        with (
            processes.folder() as folder,
            site_line(folder, placement, setting.mode, regions, streams) as line,
        ):
            for per_s in rates:
                self._tell(f"{what}, {setting.placed}: {per_s:,} events/s")
                row = self._load(part, setting, forecast, line, virtual, per_s)
                self._report["rows"].append(row)
            for per_s in beyond:
                if row.keeps_up:
                    self._tell(f"{what}, {setting.placed}: {per_s:,} events/s, beyond the paper")
                    row = self._load(BEYOND, setting, forecast, line, virtual, per_s)
                    self._report["rows"].append(row)

    def _undisturbed(self, line: SiteLine, per_s: int, seconds: float) -> LineRun:
        """Once more while other processes are busy; the run counts in which they were least."""
        plan = self._plan
        best = line.run(per_s, plan.warm_s, seconds, seed=per_s)
        for _ in range(1, plan.attempts):
            if best.others < CALM_CORES or self._spent_s() > plan.patient_s:
                break
            self._tell(f"{per_s:,} events/s again: others kept {best.others:.1f} cores busy")
            again = line.run(per_s, plan.warm_s, seconds, seed=per_s)
            best = min(best, again, key=lambda run: run.others)
        return best

    def _spent_s(self) -> float:
        return time.monotonic() - self._began

    def _load(
        self,
        part: str,
        setting: LineSetting,
        forecast: PlacementForecast,
        line: SiteLine,
        virtual: VirtualLine,
        per_s: int,
    ) -> LineRow:
        plan = self._plan
        seconds = plan.beyond_s if part == BEYOND else plan.seconds
        run = self._undisturbed(line, per_s, seconds)
        same = virtual.run(per_s, plan.warm_s, seconds, seed=per_s, at_s=run.at_s)
        told = run.latency
        return LineRow(
            part=part,
            shape=setting.shape,
            mode=setting.mode,
            placed=setting.placed,
            each=setting.each,
            total=setting.each * plan.clients,
            per_s=per_s,
            events=told["events"],
            mean_ms=told["mean_ms"],
            p50_ms=told["p50_ms"],
            p99_ms=told["p99_ms"],
            answered_per_s=told["per_s"],
            missing=told["open"],
            unsent=told["unsent"],
            late_ms=told["late_ms"],
            latest_ms=told["latest_ms"],
            virtual_ms=same["mean_ms"],
            virtual_p50_ms=same["p50_ms"],
            virtual_p99_ms=same["p99_ms"],
            floor_ms=forecast.mean_ms,
            local=forecast.local,
            outgoing=dict(run.outgoing),
            cores=dict(run.cores),
        )
