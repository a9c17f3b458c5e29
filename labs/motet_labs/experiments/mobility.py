"""The whole evaluation of paper 3: clients that move by transactions, and by its rival, covering.

    report = MobilityExperiment(FULL, progress).run(directory)

The overlays of both protocols are up at the same time, and the lines of a figure take turns: a
slice of time each, in every round. While clients move in one overlay, the other one is idle.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from motet_labs import figures, processes
from motet_labs.experiments import paper3
from motet_labs.experiments.mobility_plan import WHOLE, MobilityPlan
from motet_labs.experiments.mobility_report import MobilityReport
from motet_labs.experiments.movements import MoveRow, Point, Rest, points_of, row_of
from motet_labs.experiments.rivals import (
    COVERED,
    LINES,
    RECONFIGURATION,
    SURE,
    MoveLine,
    MoveSlice,
    Rival,
    observe,
    rivals,
)
from motet_labs.experiments.shapes import SHAPES, WantedInterval, draw
from motet_labs.figures import Progress

Way = tuple[str, str]
Rivals = Mapping[str, Rival]
TIMED = WHOLE
"""The workload whose latencies are shown over time."""


def ways(wanted: Sequence[WantedInterval]) -> list[Way]:
    """As in the paper: odd clients begin at the first source, even ones at the second."""
    both = list(zip(paper3.SOURCES, paper3.TARGETS, strict=True))
    return [both[at % len(both)] for at in range(len(wanted))]


def scattered(wanted: Sequence[WantedInterval], movers: Sequence[int], seed: int = 1) -> list[Way]:
    """Those that do not move are at random brokers."""
    dice, found = Random(seed), ways(wanted)
    names = [f"B{number}" for number in range(1, paper3.BROKERS + 1)]
    moving = set(movers)
    return [
        way if at in moving else (home := dice.choice(names), home) for at, way in enumerate(found)
    ]


class MobilityExperiment:
    def __init__(self, plan: MobilityPlan, progress: Progress) -> None:
        self._plan = plan
        self._tell = progress
        self._rows: list[MoveRow] = []
        self._points: dict[str, list[Point]] = {}
        self._at_rest: dict[str, Rest] = {}

    def run(self, out: Path) -> MobilityReport:
        """Run everything, and write `mobility.json` into the directory."""
        began, clock, plan = datetime.now(UTC), time.monotonic(), self._plan
        machine = figures.machine()
        here = {
            "workloads": self._workloads,
            "clients": self._counts,
            "single": self._single,
            "incremental": self._incremental,
            "topology": self._topology,
        }
        chosen = [here[part] for part in plan.parts if part in here]
        if chosen:
            with self._overlays(plan.sizes[0]) as on:
                for measure in chosen:
                    measure(on)
        if "topology" in plan.parts:
            for size in plan.sizes[1:]:
                with self._overlays(size) as on:
                    self._topology(on, size)
        if "wide-area" in plan.parts:
            with self._overlays(plan.sizes[0], plan.delays_s) as on:
                self._far(on)
        took_s = time.monotonic() - clock
        report = MobilityReport(
            began, took_s, machine, plan, tuple(self._rows), self._points, self._at_rest
        )
        report.save(out)
        return report

    def _overlays(self, brokers: int, delays_s: Sequence[float] = ()) -> Any:
        self._tell(f"starting two overlays of {brokers} brokers")
        return _scene(brokers, delays_s)

    # ── the parts ────────────────────────────────────────────────────────────────────────

    def _workloads(self, on: Rivals) -> None:
        plan = self._plan
        for workload in plan.workloads:
            wanted = plan.wanted(workload, plan.clients)
            self._populate(on, wanted, ways(wanted), f"workloads, {workload}")
            slices = self._measure(on, "workloads", workload, plan.clients, wanted, LINES)
            if workload == TIMED:
                self._points = {name: points_of(some, wanted) for name, some in slices.items()}

    def _counts(self, on: Rivals) -> None:
        for count in self._plan.counts:
            wanted = self._plan.wanted(WHOLE, count)
            self._populate(on, wanted, ways(wanted), f"clients, {count}")
            self._measure(on, "clients", WHOLE, count, wanted, (RECONFIGURATION, COVERED, SURE))

    def _single(self, on: Rivals) -> None:
        """One client at a time, back and forth, in all lines in turn."""
        plan = self._plan
        for count in plan.crowds:
            wanted = plan.wanted(WHOLE, count)
            self._populate(on, wanted, scattered(wanted, [0]), f"single, {count}")
            found: dict[str, list[MoveSlice]] = defaultdict(list)
            for trip in range(1, plan.trips + 1):
                for line in LINES if trip % 2 else LINES[::-1]:
                    self._tell(f"single, {count}: trip {trip} of {plan.trips}, {line.name}")
                    how: dict[str, Any] = {"mover": 0, "times": 2, "per_s": plan.per_s}
                    found[line.name].append(observe(line, on, "shuttle", sure=line.sure, **how))
            self._add("single", WHOLE, count, found, wanted)
            if count == plan.crowds[0]:
                self._rest(on)

    def _rest(self, on: Rivals) -> None:
        plan = self._plan
        for line in LINES:
            self._tell(f"nobody moves: {line.name}")
            how: dict[str, Any] = {"seconds": plan.slice_s, "pause_s": 0.0, "per_s": plan.per_s}
            rest = observe(line, on, "roam", movers=[], sure=line.sure, **how)
            self._at_rest[line.name] = Rest.of(rest)

    def _incremental(self, on: Rivals) -> None:
        plan = self._plan
        wanted, movers = incremental(plan.clients, plan.step)
        self._populate(on, wanted, scattered(wanted, movers), "incremental")
        for count in range(plan.step, len(movers) + 1, plan.step):
            step = paper3.STEPS[count // plan.step - 1]
            self._measure(on, "incremental", step, count, wanted, LINES[:3], movers=movers[:count])

    def _topology(self, on: Rivals, size: int = 0) -> None:
        plan = self._plan
        size = size or plan.sizes[0]
        wanted = plan.wanted(WHOLE, plan.clients)
        self._populate(on, wanted, ways(wanted), f"topology, {size}")
        self._measure(on, "topology", WHOLE, size, wanted, LINES[:3])

    def _far(self, on: Rivals) -> None:
        plan = self._plan
        for workload in plan.far_workloads:
            wanted = plan.wanted(workload, plan.far_clients)
            self._populate(on, wanted, ways(wanted), f"wide-area, {workload}")
            self._measure(on, "wide-area", workload, plan.far_clients, wanted, LINES)

    # ── what they share ──────────────────────────────────────────────────────────────────

    def _populate(
        self, on: Rivals, wanted: Sequence[WantedInterval], where: Sequence[Way], stage: str
    ) -> None:
        for name, rival in on.items():
            self._tell(f"{stage}: {len(wanted)} clients connect to the overlay {name}")
            rival.populate(wanted, where)

    def _measure(
        self,
        on: Rivals,
        part: str,
        workload: str,
        at: int,
        wanted: Sequence[WantedInterval],
        lines: Sequence[MoveLine],
        movers: Sequence[int] | None = None,
    ) -> dict[str, list[MoveSlice]]:
        """All lines in turn, in reverse order every other round; the one with exactly-once events
        has a single round."""
        plan = self._plan
        found: dict[str, list[MoveSlice]] = {line.name: [] for line in lines}
        for number in range(1, plan.rounds_of(part, workload) + 1):
            for line in lines if number % 2 else lines[::-1]:
                if line.sure and number > 1:
                    continue
                self._tell(f"{part}, {workload}, {at}: round {number}, {line.name}")
                seconds, pause_s = plan.slice_of(part), plan.pause_of(part)
                how: dict[str, Any] = {"seconds": seconds, "pause_s": pause_s}
                how |= {"per_s": plan.per_s, "sure": line.sure, "seed": number}
                found[line.name].append(observe(line, on, "roam", movers=movers, **how))
        self._add(part, workload, at, found, wanted)
        return found

    def _add(
        self,
        part: str,
        workload: str,
        at: int,
        found: Mapping[str, Sequence[MoveSlice]],
        wanted: Sequence[WantedInterval],
    ) -> None:
        self._rows += [row_of(part, workload, at, some, wanted) for some in found.values()]


def incremental(clients: int, step: int) -> tuple[list[WantedInterval], list[int]]:
    """A quarter of the clients for each shape; and those that move, in the paper's order: a step
    each of covering ones of three shapes, of ones that cover nothing there, and of distinct ones.
    """
    wanted: list[WantedInterval] = []
    for shape in SHAPES:
        first = max((each.group for each in wanted), default=-1) + 1
        wanted += [
            replace(each, group=each.group + first) for each in draw(shape, clients // len(SHAPES))
        ]
    dice = Random(1)
    leaves = [at for at, each in enumerate(wanted) if not each.direct and each.shape != "distinct"]
    movers: list[int] = []
    for kind in paper3.STEPS:
        some = [at for at, each in enumerate(wanted) if each.shape == kind and each.node == 1]
        if kind == "leaf":
            some = dice.sample(leaves, step)
        elif kind == "distinct":
            some = [at for at, each in enumerate(wanted) if each.shape == kind]
        movers += some[:step]
    return wanted, movers


@contextmanager
def _scene(brokers: int, delays_s: Sequence[float]) -> Iterator[Rivals]:
    with processes.folder() as folder, rivals(folder, brokers, delays_s) as on:
        yield on
