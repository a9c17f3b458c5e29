"""Excuses, circles, and what an audit says."""

from __future__ import annotations

from math import inf

from motet.audit.circles import circle
from motet.audit.excuses import severed
from motet.audit.verdicts import GUARANTEES, Audit, Finding

BROKERS = [{"run": "r", "broker": name} for name in ("A", "B", "C", "D")]
LINKS = [{"run": "r", "one": one, "other": other} for one, other in ("AB", "BC", "BD")]


def forgot(one: str, other: str = "", until: float = 5.0) -> dict[str, object]:
    return {"run": "r", "one": one, "other": other, "since": 5.0, "until": until}


def test_no_brokers_are_severed_if_no_state_was_lost() -> None:
    assert severed(BROKERS, LINKS, []) == []


def test_an_intermediate_broker_that_lost_state_severs_only_paths_through_it() -> None:
    found = {(a, b): t for _, a, b, *t in severed(BROKERS, LINKS, [forgot("B")])}
    assert found["A", "C"] == [-inf, 5.0]
    assert found["A", "B"] == [5.0, 5.0]
    assert ("A", "A") not in found


def test_a_lost_link_severs_both_of_its_brokers() -> None:
    found = {(a, b): t for _, a, b, *t in severed(BROKERS, LINKS, [forgot("C", "B", inf)])}
    assert found["A", "C"] == [inf, inf]
    assert ("A", "D") not in found


def test_circles() -> None:
    assert circle([]) == []
    assert circle([(1, 2), (2, 3), (1, 3)]) == []
    assert circle([(1, 2), (2, 3), (3, 4), (4, 2)]) == [(2, 3), (3, 4), (4, 2)]
    assert circle([(1, 1)]) == [(1, 1)]


def test_a_long_circle_needs_no_deep_stack() -> None:
    long = [(n, n + 1) for n in range(100_000)]
    assert circle(long) == []
    assert len(circle([*long, (100_000, 0)])) == 100_001


def test_an_audit_counts_by_guarantee_and_run() -> None:
    found = Audit({"order": 10}, [Finding("order", "tick order", 3, ["x"], "r")])
    assert not found.is_clean
    assert found.broken() == found.broken("r") == {"order"}
    assert found.broken("another") == set()
    told = found.as_dict()
    assert told["guarantees"]["order"] == {"checked": 10, "violations": 3}
    assert list(told["guarantees"]) == list(GUARANTEES)
    assert told["findings"][0]["examples"] == ["x"]
