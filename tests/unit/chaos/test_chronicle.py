"""Where something was broken, and when it was seen to be well."""

from __future__ import annotations

import pytest

from motet.chaos.chronicle import LOOKBACK_S, Chronicle
from motet.testing.topology import Tree

EDGE = ("B1", "B2")


class Clocked(Chronicle):
    """Time stands where the test has put it."""

    at = 0.0

    def now(self) -> float:
        return self.at


@pytest.fixture
def chronicle() -> Clocked:
    made = Clocked(Tree([EDGE]), covering=False, hop_s=1.0, lease_s=10.0)
    made.at = 10.0
    for place in made.places:
        made.well(place)
    return made


def test_every_place_is_in_trouble_until_it_is_seen_healthy() -> None:
    made = Clocked(Tree([EDGE]), covering=False, hop_s=1.0, lease_s=10.0)
    assert made.places == ["B1", "B2", EDGE]
    assert all(made.is_troubled(place) for place in made.places)
    made.at = 3.0
    made.well("B1")
    assert made.history.disturbed["B1"].meets(2.9, 2.95)
    assert not made.history.disturbed["B1"].meets(3.1, 99.0)


def test_a_fault_counts_as_trouble_until_its_end_was_observed(chronicle: Clocked) -> None:
    chronicle.at = 20.0
    chronicle.afflict("B1")
    chronicle.at = 21.0
    assert chronicle.is_afflicted("B2", "B1")
    chronicle.relieve("B1")
    assert not chronicle.is_afflicted("B1")
    assert chronicle.is_troubled("B1")
    chronicle.at = 23.0
    chronicle.well("B1")
    assert not chronicle.is_troubled("B1")
    spans = chronicle.history.disturbed["B1"]
    assert not spans.meets(11.0, 19.9)
    assert spans.meets(20.0, 20.1)
    assert spans.meets(22.5, 22.9)
    assert not spans.meets(23.1, 99.0)
    assert chronicle.longest_outage_s == pytest.approx(3.0)


def test_two_faults_at_one_place_end_with_the_later(chronicle: Clocked) -> None:
    chronicle.afflict(EDGE)
    chronicle.afflict(EDGE)
    chronicle.relieve(EDGE)
    assert chronicle.is_afflicted(EDGE)
    chronicle.relieve(EDGE)
    assert not chronicle.is_afflicted(EDGE)


def test_an_unplanned_failure_counts_from_before_it_was_noticed(chronicle: Clocked) -> None:
    chronicle.at = 50.0
    chronicle.notice(EDGE)
    spans = chronicle.history.disturbed[EDGE]
    assert spans.meets(50.0 - LOOKBACK_S, 50.0 - LOOKBACK_S)
    assert not spans.meets(11.0, 49.9 - LOOKBACK_S)


def test_failures_during_the_shutdown_do_not_count(chronicle: Clocked) -> None:
    chronicle.recording = False
    chronicle.notice(EDGE)
    assert not chronicle.is_troubled(EDGE)
