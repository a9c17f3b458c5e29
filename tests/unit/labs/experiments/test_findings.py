"""What is made of what was seen: sums, shares, times, and pictures of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from motet.errors import MisuseError
from motet.fleet.fleet import links
from motet.model import encode_event
from motet_labs.experiments import exactly_once, paper5, plots
from motet_labs.experiments.exactly_once import FULL, ExactlyOncePlan, ExactlyOnceReport
from motet_labs.experiments.faults import (
    Arrival,
    DeliveryAccount,
    FaultRecord,
    NackNoted,
    PacedTraffic,
    padding,
    proxied,
    total_ms,
)
from motet_labs.experiments.overhead import (
    BareSync,
    Overhead,
    OverheadEffort,
    OverheadRow,
    group_sizes,
    idle_between,
    machine_s,
)
from motet_labs.experiments.paper5 import Schedule
from motet_labs.experiments.report import PaperFigure

P = "p1.1"
PNG = b"\x89PNG"
MACHINE = {"cpu": "one", "cores": 1, "python": "3", "loop": "a loop", "load_average": [0.5]}


def record(fault: str = "broker", lost: int = 0) -> FaultRecord:
    """b1 stalls at 1, is gone from 2 to 3; what was sent meanwhile arrives at 4."""
    late = [Arrival(0, number, 1.0 + number / 10, 3.0 - number / 10, P) for number in range(20)]
    well = [note._replace(latency_s=0.002) for note in late]
    nacks = [
        NackNoted(3.5, "s1", "sent", "b1", P, 2000.0),
        NackNoted(3.5, "b1", "received", "s1", P, 2000.0),
        NackNoted(3.5, "b1", "sent", "p1", P, 2000.0),
        NackNoted(3.6, "s2", "sent", "b1", P, 2000.0),
        NackNoted(3.6, "b1", "received", "s2", P, 2000.0),
    ]
    marks = {"stall": 1.0, "fail": 2.0, "heal": 3.0}
    arrivals = {"s1": late, "s2": late, "s3": well}
    account = DeliveryAccount(20, 60, lost, 0, 0)
    return FaultRecord(fault, "b1", Schedule(1.0, 1.0, 1.0, 2.0), marks, arrivals, nacks, account)


def overhead(lost: int = 0) -> Overhead:
    def mode(factor: float) -> dict[str, float]:
        names = ("publishers_cpu_points", "subscribers_cpu_points", "publishers_cpu_us")
        more = ("subscribers_cpu_us", "local_ms", "remote_ms", "remote_p99_ms", "events_per_s")
        more += ("machine_idle_points",)
        return dict.fromkeys((*names, *more), 3.0 * factor)

    rows = tuple(
        OverheadRow(count, {"best_effort": mode(1.0), "exactly_once": mode(factor)})
        for count, factor in ((10, 2.0), (20, 3.0))
    )
    return Overhead(OverheadEffort(crowds=(10, 20)), BareSync(1.0, 2.0), rows, lost, 0, 0)


def report(*records: FaultRecord, lost: int = 0) -> ExactlyOnceReport:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    return ExactlyOnceReport(began, 1.0, MACHINE, FULL, overhead(lost), records)


def value(found: list[PaperFigure], name: str) -> float:
    return next(each.value for each in found if name in each.name)


def test_one_question_upstream_for_two_downstream_is_perfect() -> None:
    assert total_ms(record().nacks, "sent", ("s1", "s2")) == 4000.0
    assert exactly_once.consolidation(record(), "IB1") == paper5.CONSOLIDATION
    assert exactly_once.consolidation(record(), "IB2") is None


def test_a_fault_is_over_when_the_last_delayed_event_has_arrived() -> None:
    found = exactly_once.of_fault(record())
    assert value(found, "after b1 failed") == pytest.approx(2.0)
    assert value(found, "longest latency at s1") == pytest.approx(3000.0)
    assert exactly_once.late_until_s(record().arrivals["s3"]) is None


def test_the_worst_number_of_subscribers_counts() -> None:
    found = exactly_once.of_overhead(overhead())
    assert value(found, "publishers' broker") == 6.0
    assert overhead().rows[1].to_json()["difference"]["local_ms"] == 6.0


@pytest.mark.parametrize(
    "broken", [report(lost=1), report(record(lost=1)), report(record(), record("link", lost=3))]
)
def test_a_lost_event_in_any_part_breaks_the_promise(broken: ExactlyOnceReport) -> None:
    assert not broken.kept
    assert any(not each.holds for each in broken.findings if each.name == "events lost")
    assert report(record()).kept


def test_the_report_is_plain_json() -> None:
    told = report(*(record(fault) for fault in ("link", "broker", "publisher")))
    whole = json.loads(json.dumps(told.to_json(series=True), allow_nan=False))
    assert whole["broker"]["series"]["latency"]["s1"][0] == [1.0, 3000.0, 0]
    assert whole["broker"]["nacks"]["b1"]["received_range_ms"] == 4000.0
    assert "series" not in told.to_json()["broker"]


def test_every_part_of_the_experiment_has_a_picture(tmp_path: Path) -> None:
    told = report(*(record(fault) for fault in ("link", "broker", "publisher")))
    drawn = plots.draw(told, tmp_path)
    assert [path.stem for path in drawn] == ["overhead", "link", "broker", "publisher"]
    assert all(path.read_bytes().startswith(PNG) for path in drawn)


def test_the_page_has_every_figure_and_every_picture(tmp_path: Path) -> None:
    told = report(*(record(fault) for fault in ("link", "broker", "publisher")))
    text = told.page([tmp_path / "broker.png"])
    assert all(f"| {each.name} | " in text for each in told.findings)
    assert "![Broker b1 crashes](broker.png)" in text
    others = report(*(replace(each, victim="b2") for each in told.records))
    assert "## Broker b2 crashes" in others.page()
    assert exactly_once.BUSY in text  # idle for 3 to 9 per cent
    assert "Normal for 1 s, stalled for 1 s, down for 1 s, back for 2 s." in text


def test_events_have_the_size_that_was_asked_for() -> None:
    event = {"publisher": 1, "number": 1_000_000, "sent": 0.5}
    for size_bytes in range(60, 700):
        size = len(encode_event(event, padding(event, size_bytes)))
        assert size_bytes - 1 <= size <= size_bytes


def test_accounts_tell_lost_doubled_and_swapped_apart() -> None:
    traffic = PacedTraffic(1, 25.0, paper5.FAULT_BYTES)
    traffic._made[0] = 4
    traffic.arrivals["s"] = [Arrival(0, number, 0.0, 0.0, P) for number in (1, 3, 2, 3)]
    assert traffic.account() == DeliveryAccount(4, 4, 1, 1, 1)


def test_idle_time_is_a_share_of_elapsed_time() -> None:
    assert idle_between((10.0, 100.0), (15.0, 120.0)) == 25.0
    assert idle_between((0.0, 0.0), (0.0, 0.0)) == 0.0
    idle, passed = machine_s()
    assert 0.0 <= idle <= passed


def test_every_group_gets_its_share() -> None:
    assert group_sizes(7, 3) == [3, 2, 2]


def test_the_paper_s_overlay_has_its_links_and_its_patience() -> None:
    topology = paper5.topology(range(7001, 7001 + paper5.MOST_BROKERS))
    assert topology.liveness == paper5.LIVENESS
    assert set(paper5.SUBSCRIBER_BROKERS) <= set(topology.names)
    assert len(topology.processes) == paper5.MOST_BROKERS
    ways = proxied(links(topology))
    assert {("b1", "s1"), ("b2", "s1"), ("p1", "b1"), ("p1", "b4")} <= set(ways)
    assert all({"p1", "s1"} & set(link) for link in ways)


def test_an_unknown_part_of_the_experiment_is_misuse() -> None:
    with pytest.raises(MisuseError, match="unknown part 'links'; choose from overhead, link"):
        ExactlyOncePlan(parts=("links",))
