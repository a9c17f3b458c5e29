"""Paper 1's evaluation: paths counted from the protocol, findings, page, pictures, slow links."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from motet.broker.overlay.topology import Topology
from motet.errors import MisuseError
from motet_labs.experiments import plots
from motet_labs.experiments.delay_proxy import delay
from motet_labs.experiments.dispatch import APPROACHES, LeastWait, critical_path, find_wait
from motet_labs.experiments.regular import ALONE, Impact, TimeSlice
from motet_labs.experiments.transactions import (
    DELAYED,
    QUICK,
    TITLES,
    ApproachRow,
    TransactionsPlan,
    TransactionsReport,
)
from motet_labs.processes import command
from tests.waiting import PATIENCE_S

MACHINE = {"cpu": "one", "cores": 1, "python": "3", "loop": "a loop", "load_average": [0.5]}


def row(part: str, at: int, approach: str, ms: float, **more: int) -> ApproachRow:
    wrong = more.get("wrong", 0)
    return ApproachRow(part, DELAYED.name, at, approach, ms, ms, ms, 1e3 / ms, 10, wrong, 0)


def report(wrong: int = 0) -> TransactionsReport:
    rows = [row("base", 3, each, 10.0 * (at + 1)) for at, each in enumerate(APPROACHES)]
    rows += [row("overlay", at, each, 10.0 * at) for at in (1, 9) for each in APPROACHES]
    rows += [row("concurrency", at, each, 10.0 + at) for at in (1, 10) for each in APPROACHES]
    rows += [row("clients", at, each, 5.0 + at) for at in (4, 20, 40) for each in APPROACHES]
    rows[-1] = replace(rows[-1], wrong=wrong)
    return TransactionsReport(datetime.now(UTC), 1.0, MACHINE, QUICK, tuple(rows), impact())


def impact(lost: int = 0) -> Impact:
    """The machine gets slower and slower, and each approach costs a tenth of what there is."""
    slices, per_s = [], 1000
    for approach in (ALONE, *(turn for each in APPROACHES for turn in (each, ALONE))):
        events = per_s if approach == ALONE else per_s * 9 // 10
        course = ((0.05, float(events)), (0.1, events / 2))
        slices.append(
            TimeSlice(approach, 1.0, events, 4, cpu_s=1.0, clients_cpu_s=0.5, course=course)
        )
        per_s -= 100
    return Impact(tuple(slices), lost=lost)


class TestPaths:
    def test_on_one_broker_only_clients_are_away(self) -> None:
        static = critical_path(Topology.line(1), ("B1",) * 4, "S-TX", 0)
        assert (static.hops, static.fsyncs) == (2, 1)  # the plan, and the answer

    def test_the_critical_path_of_a_decision_leads_to_the_farthest_participant(self) -> None:
        line, places = Topology.line(3), ("B1", "B2", "B3", "B1")
        assert critical_path(line, places, "S-TX", 0).hops == 2 + 2 * 2 + 2 * 2
        assert critical_path(line, places, "S-TX", 1).hops == 2 + 2 * 1 + 2 * 1
        tree, places = Topology.tree(9, 3), ("B1", "B2", "B3", "B4")
        # those below are not waited for
        assert critical_path(tree, places, "S-TX", 0).hops == 2 + 2 * 1 + 2 * 1

    def test_the_parts_of_a_plan_go_straight_to_the_root(self) -> None:
        path = critical_path(Topology.tree(9, 3), ("B5", "B6", "B6", "B6"), "S-TX", 0)
        to_parts, to_root, decision, answer = 2, 2, 2 * 2, 2
        assert path.hops == 1 + to_parts + to_root + decision + answer + 1

    @pytest.mark.parametrize("agent", [0, 1])
    def test_isolation_costs_an_opening_and_a_validation(self, agent: int) -> None:
        tree, places = Topology.tree(9, 3), ("B2", "B3", "B4", "B5")
        isolated = critical_path(tree, places, "D-TX", agent)
        more = isolated.hops - critical_path(tree, places, "D-TX_NI", agent).hops
        assert more == 2 * 1 + 2 * (2 * 2)  # to the root and back; two floods of depth two


class TestFindings:
    def test_growth_is_that_of_the_means(self) -> None:
        found = {each.name: each for each in report().findings}
        assert found["S-TX, latency of 9 brokers per that of 1"].value == pytest.approx(9.0)
        assert found["S-TX, latency of 9 brokers per that of 1"].holds is False
        assert found["D-TX, throughput of 40 clients per that of 20"].holds is False

    def test_the_drop_is_in_percent_of_the_rate_alone(self) -> None:
        found = impact()
        for approach in APPROACHES:
            assert found.dip(approach).middle == pytest.approx(10.0)
            assert found.dip_by_cpu(approach).middle == pytest.approx(10.0)
            assert found.clients_share(approach) == pytest.approx(50.0)
            assert found.dispatched(approach) == 4
        named = {each.name: each for each in report().findings}
        name = "drop of the regular rate beside S-TX: 4 instances, quartiles 10 to 10"
        assert named[name].value == pytest.approx(10.0)
        assert named[name].holds is False

    def test_a_slice_is_compared_with_its_own_neighbours_and_quartiles_are_told(self) -> None:
        rates = [(ALONE, 100), ("S-TX", 90), (ALONE, 100), ("S-TX", 80), (ALONE, 100)]
        rates += [("S-TX", 30), (ALONE, 50), ("S-TX", 55), (ALONE, 50)]
        found = Impact(tuple(TimeSlice(approach, 2.0, 2 * per_s) for approach, per_s in rates))
        assert found.rate().middle == 100
        spread = found.dip("S-TX")  # of -10, 10, 20 and 60 percent
        assert (spread.low, spread.middle, spread.high) == pytest.approx((5.0, 15.0, 30.0))

    def test_slices_are_laid_over_each_other(self) -> None:
        assert impact().course("S-TX")[0] == (pytest.approx(0.05), pytest.approx(630.0))
        assert impact().bursts_s == pytest.approx([0.25, 0.75])

    def test_a_regular_event_that_is_lost_is_a_violation(self) -> None:
        assert not replace(report(), impact=impact(lost=1)).kept

    def test_one_update_astray_is_a_violation_unless_nothing_was_promised(self) -> None:
        assert report().kept
        assert not report(wrong=1).kept
        lucky = report()
        rows = tuple(replace(r, wrong=r.approach == "BL-WAIT") for r in lucky.rows)
        assert replace(lucky, rows=rows).kept

    def test_everything_is_plain_json(self) -> None:
        told = json.loads(json.dumps(report().to_json(), allow_nan=False))
        assert {each["part"] for each in told["rows"]} == {
            "base", "overlay", "concurrency", "clients",
        }  # fmt: skip

    def test_an_unknown_part_is_refused(self) -> None:
        with pytest.raises(MisuseError, match="unknown part"):
            TransactionsPlan(parts=("weather",))

    def test_page_and_pictures_have_every_part(self, tmp_path: Path) -> None:
        drawn = plots.draw(report(), tmp_path)
        assert {path.stem for path in drawn} == {*QUICK.parts}
        text = report().page(drawn)
        for part in QUICK.parts:
            assert f"![{TITLES[part]}]({part}.png)" in text


class _Load:
    """Goes wrong below a wait."""

    def __init__(self, enough_ms: float) -> None:
        self.enough_ms = enough_ms
        self.load = self

    def ask(self, do: str, **asked: float) -> dict[str, int]:
        assert do == "dispatch"
        return {"wrong": int(asked["wait_s"] * 1e3 < self.enough_ms)}


class TestWaiting:
    @pytest.mark.parametrize("enough_ms", [0.5, 8.0, 13.2, 300.0])
    def test_the_least_wait_is_enclosed(self, enough_ms: float) -> None:
        found = find_wait(_Load(enough_ms), runs=1)  # type: ignore[arg-type]
        assert found.wrong_ms < enough_ms <= found.least_ms
        assert found.least_ms - found.wrong_ms <= max(1.0, found.least_ms / 16)

    def test_the_paper_goes_in_steps(self) -> None:
        assert LeastWait(13.0, 12.0, 1).as_in_paper_ms == 50.0
        assert LeastWait(51.0, 50.0, 1).as_in_paper_ms == 100.0


class TestDelaying:
    def test_everything_arrives_in_order_and_not_too_early(self) -> None:
        delay_s = 0.02
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            pipe, words = subprocess.PIPE, command(delay, delay_s, [port])
            with subprocess.Popen(words, stdin=pipe, stdout=pipe) as hop:
                assert hop.stdout is not None
                through = json.loads(hop.stdout.readline())[str(port)]
                with socket.create_connection(("127.0.0.1", through)) as near:
                    far, _ = listening.accept()
                    with far:
                        far.settimeout(PATIENCE_S)
                        began = time.monotonic()
                        near.sendall(b"one")
                        near.sendall(b"two")
                        near.shutdown(socket.SHUT_WR)
                        heard = b""
                        while more := far.recv(100):
                            heard += more
                        took_s = time.monotonic() - began
                assert hop.stdin is not None
                hop.stdin.close()
                assert hop.wait(PATIENCE_S) == 0
        assert heard == b"onetwo"
        assert took_s >= delay_s
