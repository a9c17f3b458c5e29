"""Paper 3's evaluation: slices become rows, rows become figures, a page and pictures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from motet.broker.overlay.topology import Topology
from motet.errors import MisuseError
from motet.model.coverage import RETRACT
from motet_labs.experiments import mobility_plots, paper3, plots
from motet_labs.experiments.dispatch import distances
from motet_labs.experiments.mobility import incremental, scattered, ways
from motet_labs.experiments.mobility_plan import FULL, QUICK, WHOLE, MobilityPlan
from motet_labs.experiments.mobility_report import MobilityReport, drawn
from motet_labs.experiments.movements import (
    EventAccount,
    Latency,
    MoveRow,
    Point,
    Rest,
    points_of,
    row_of,
)
from motet_labs.experiments.rivals import (
    COVERED,
    RECONFIGURATION,
    REISSUE,
    SURE,
    MoveLine,
    MoveSlice,
    Traffic,
)
from motet_labs.experiments.shapes import draw

MACHINE = {"cpu": "one", "cores": 1, "python": "3", "loop": "a loop", "load_average": [0.5]}
SENT = {"Subscribe": 8, "Unsubscribe": 4, "Echo": 6, "ClientHere": 2, "Started": 3, "MoveCommit": 5}
SENT |= {"MoveOffer": 7, "Knowledge": 9, "Publications": 11, "Control": 20, "Deliver": 50}


def told(movements: Sequence[Any], **more: Any) -> dict[str, Any]:
    events = {"expected": 10, "missed": 0, "doubled": 0, "swapped": 0}
    return {"movements": movements, "took_s": 2.0, "failed": 0, "problems": []} | events | more


def row(part: str, workload: str, at: int, line: MoveLine, ms: float, **more: Any) -> MoveRow:
    latency = Latency(10, ms, ms, ms)
    sent = Traffic(control=10, moves=10, soft=10) if line.how == "move" else Traffic(control=50)
    steps = () if line.how == "move" else (ms / 2, ms / 4, ms / 4)
    known = row_of(part, workload, at, [MoveSlice(line, told([]), Counter(), 0.0)], [])
    known = replace(known, latency=latency, wide=latency, traffic=sent, steps_ms=steps, per_s=5.0)
    return replace(known, **more)


MS = {RECONFIGURATION: 10.0, COVERED: 200.0, REISSUE: 12.0, SURE: 11.0}
PLACES = (
    *(("workloads", workload, 400) for workload in FULL.workloads),
    *(("clients", WHOLE, count) for count in FULL.counts),
    *(("single", WHOLE, count) for count in FULL.crowds),
    *(("incremental", step, 10 * (at + 1)) for at, step in enumerate(paper3.STEPS)),
    *(("topology", WHOLE, size) for size in FULL.sizes),
    *(("wide-area", workload, 100) for workload in FULL.far_workloads),
)


def report(*, sure: EventAccount | None = None, slower: float = 1.0) -> MobilityReport:
    """`slower`: reconfiguration of the most clients."""
    rows = [row(*place, line, ms) for place in PLACES for line, ms in MS.items()]
    for at, each in enumerate(rows):
        if (each.part, each.at, each.line) == ("clients", 1000, RECONFIGURATION.name):
            rows[at] = replace(each, latency=Latency(10, *(10.0 * slower,) * 3))
    rows[-1] = replace(rows[-1], events=sure or rows[-1].events)
    points = {line.name: [Point(0.5, ms, 0), Point(0.7, ms, 9)] for line, ms in MS.items()}
    at_rest = {line.name: Rest(line.name, Traffic(stream=3.0)) for line in MS}
    return MobilityReport(datetime.now(UTC), 1.0, MACHINE, FULL, tuple(rows), points, at_rest)


def holds(found: MobilityReport, *words: str) -> list[bool | None]:
    return [each.holds for each in found.findings if all(word in each.name for word in words)]


class TestRows:
    def test_messages_are_counted_by_kind(self) -> None:
        sent = Traffic.of(SENT)
        assert sent == Traffic(28, 5, 12, 6, 2, 3, 7, 9, 11)
        assert sum(sent[1:6]) == sent.control

    def test_slices_are_joined_and_covering_movements_kept_apart(self) -> None:
        wanted = draw("covered", 10)
        slices = [
            MoveSlice(
                COVERED, told([(0, 0.5, (0.1, 0.2, 0.3)), (3, 0.6, (0.1, 0.1, 0.1))]), some, 1.0
            )
            for some in (Counter(Subscribe=6), Counter(Subscribe=2))
        ]
        found = row_of("workloads", "covered", 10, slices, wanted)
        assert (found.latency.moves, found.wide.moves, found.per_s) == (4, 2, 1.0)
        assert found.latency.mean_ms == pytest.approx(450)
        assert found.wide.p50_ms == pytest.approx(600)
        assert found.steps_ms == pytest.approx((100, 150, 200))
        assert found.traffic.routes == 2.0
        assert found.cpu_ms == 500.0
        assert found.events == EventAccount(20, 0, 0, 0)
        assert [point.at_s for point in points_of(slices, wanted)] == [0.5, 0.6, 2.5, 2.6]

    def test_what_brokers_send_anyway_does_not_count(self) -> None:
        rest = Rest.of(MoveSlice(SURE, told([]), Counter(Knowledge=40, AckUp=20), 0.0))
        assert rest.per_s.stream == 30.0
        moved = row(
            "single", WHOLE, 400, SURE, 10.0, took_s=5.0, traffic=Traffic(10, 10, stream=25)
        )
        assert rest.beyond(moved).stream == 10.0
        assert rest.beyond(moved).control == 10.0

    def test_a_line_without_movements_is_a_row(self) -> None:
        found = row_of("single", WHOLE, 10, [MoveSlice(COVERED, told([]), Counter(), 0.0)], [])
        assert (found.latency.moves, found.latency.p50_ms, found.steps_ms) == (0, 0.0, ())


class TestFindings:
    def test_ratios_are_judged_by_the_goals(self) -> None:
        found = report()
        assert holds(found, "single", "covers 399") == []
        assert holds(found, "one subscription that covers 399") == [True]
        assert holds(found, "movements of covering") == [True, True]
        assert holds(found, "per reissue, distinct") == [True]
        assert holds(found, "400 to 1,000 clients", "reconfiguration") == [True]
        assert holds(report(slower=1.5), "400 to 1,000 clients", "reconfiguration") == [False]
        assert holds(found, "14 to 26 brokers", "reconfiguration") == [True]
        assert holds(found, "control messages of a move per hop") == [True]
        assert holds(found, "soft messages of a move per hop") == [False]
        assert holds(found, "exactly-once events") == [True] * 3

    @pytest.mark.parametrize(
        "wrong", [EventAccount(9, 1), EventAccount(9, 0, 1), EventAccount(9, 0, 0, 1)]
    )
    def test_one_wrong_event_in_exactly_once_traffic_breaks_the_promise(
        self, wrong: EventAccount
    ) -> None:
        assert report().kept
        assert not report(sure=wrong).kept
        assert False in holds(report(sure=wrong), "exactly-once events")

    def test_everything_is_plain_json(self) -> None:
        whole = json.loads(json.dumps(report().to_json(series=True), allow_nan=False))
        assert {each["part"] for each in whole["rows"]} == set(FULL.parts)
        assert whole["workloads"][WHOLE]["covers"] == {"399": 1, "0": 399}
        goals = {each["name"]: each["kept"] for each in whole["goals"]}
        assert len(goals) == len(whole["goals"]) == 11
        assert not goals["soft messages of a move per hop, the most of any line (goal: at most 1)"]
        assert whole["series"][COVERED.name] == [[0.5, 200.0, 0], [0.7, 200.0, 9]]

    def test_page_and_pictures_have_every_part(self, tmp_path: Path) -> None:
        pictures = plots.draw(report(), tmp_path)
        assert {path.stem for path in pictures} == {*FULL.parts, "workloads-2"}
        page = report().page(pictures)
        assert all(f"| {each.name} | " in page for each in report().findings)
        assert all(f"({path.name})" in page for path in pictures)
        assert "40 cover 9, 360 cover 0" in page

    def test_bars_and_lines_begin_at_zero(self) -> None:
        """A bar whose axis begins elsewhere shows a difference larger than it is."""
        drawn = mobility_plots.of(report().rows, report().points)
        for part in FULL.parts:
            for axis in drawn[part].axes:
                assert axis.get_yscale() == "linear"
                assert axis.get_ylim()[0] == 0.0
                shown = [bar.get_height() for bar in axis.patches]
                shown += [value for line in axis.lines for value in line.get_ydata()]
                assert axis.get_ylim()[1] > max(shown) > 0

    def test_pictures_are_drawn_again_from_the_figures(self, tmp_path: Path) -> None:
        report().save(tmp_path)
        drawn = mobility_plots.again(tmp_path)
        assert [path.name for path in drawn] == [
            path.name for path in plots.draw(report(), tmp_path / "first")
        ]
        for path in drawn:
            assert path.read_bytes() == (tmp_path / "first" / path.name).read_bytes(), path.name

    def test_rows_come_back_from_their_json(self) -> None:
        for each in report().rows:
            assert MoveRow.from_json(json.loads(json.dumps(each.to_json()))) == each

    def test_an_unknown_part_is_refused(self) -> None:
        with pytest.raises(MisuseError, match="unknown part 'weather'; choose from workloads"):
            MobilityPlan(parts=("weather",))


class TestCrowds:
    def test_the_paths_of_clients_are_as_long_in_every_overlay(self) -> None:
        for size in FULL.sizes:
            whole: Topology = paper3.topology(list(range(7001, 7001 + size)), RETRACT)
            assert len(whole.names) == size
            for source, target in zip(paper3.SOURCES, paper3.TARGETS, strict=True):
                assert distances(whole, source)[target] == paper3.HOPS

    def test_only_movers_have_two_brokers(self) -> None:
        wanted = draw("covered", 20)
        assert ways(wanted)[:2] == [("B1", "B13"), ("B2", "B14")]
        found = scattered(wanted, [0])
        assert found[0] == ("B1", "B13")
        assert all(home == away for home, away in found[1:])

    @pytest.mark.parametrize("plan", [FULL, QUICK])
    def test_each_step_of_the_incremental_movement_has_its_kind(self, plan: MobilityPlan) -> None:
        wanted, movers = incremental(plan.clients, plan.step)
        assert len(wanted) == plan.clients
        assert len(set(movers)) == len(movers) == plan.step * len(paper3.STEPS)
        kinds = [(wanted[at].shape, wanted[at].direct) for at in movers]
        expected = [("covered", 9), ("tree", 2), ("chained", 1)]
        for at, kind in enumerate(expected):
            assert kinds[at * plan.step : (at + 1) * plan.step] == [kind] * plan.step
        assert all(not direct for _, direct in kinds[3 * plan.step :])
        assert {shape for shape, _ in kinds[4 * plan.step :]} == {"distinct"}

    def test_what_each_covers_is_told(self) -> None:
        assert drawn(draw("tree", 10))["directly"] == {2: 4, 1: 1, 0: 5}
