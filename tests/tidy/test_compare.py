"""`make compare`: benchmarks of two trees, in turns."""

from __future__ import annotations

from typing import Any

import pytest

from tools.compare import ROOT, compared, main, measured


def figure(name: str, value: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit}


def a_round(before: dict[str, float], after: dict[str, float], unit: str) -> dict[str, Any]:
    return {
        side: [figure(name, value, unit) for name, value in values.items()]
        for side, values in (("before", before), ("after", after))
    }


@pytest.mark.parametrize(
    ("unit", "before", "after", "verdict"),
    [
        ("events/s", 100, 96, "worse"),
        ("events/s", 100, 98, "same"),
        ("events/s", 100, 104, "better"),
        ("µs", 100, 104, "worse"),
        ("µs", 100, 96, "better"),
        ("times", 100, 50, ""),  # the unit does not say which is better
    ],
)
def test_the_unit_says_which_direction_is_worse(
    unit: str, before: float, after: float, verdict: str
) -> None:
    found = compared([a_round({"rate": before}, {"rate": after}, unit)])
    assert [each.verdict for each in found.compared] == [verdict]


def test_a_ratio_is_the_median_of_the_rounds_whatever_the_machine_did_between_them() -> None:
    """In the second round the machine was twice as slow for both sides."""
    rounds = [
        a_round({"rate": before}, {"rate": after}, "events/s")
        for before, after in ((100, 90), (50, 45), (100, 120))
    ]
    only = compared(rounds).compared[0]
    assert (only.ratio, only.least, only.most) == (0.9, 0.9, 1.2)
    assert (only.before, only.after) == (100, 90)


def test_figures_of_one_side_only_are_listed() -> None:
    found = compared([a_round({"a": 1, "old": 1}, {"a": 1, "new": 1}, "ms")])
    assert [each.name for each in found.compared] == ["a"]
    assert found.alone == {"before": ["old"], "after": ["new"]}


def test_this_tree_can_be_measured() -> None:
    names = [each["name"] for each in measured(ROOT, "match", "least")]
    assert len(set(names)) == len(names) > 10


def test_a_wrong_commit_or_benchmark_is_an_error_in_plain_text() -> None:
    with pytest.raises(SystemExit, match="no-such-commit"):
        main(["no-such-commit", "match", "--size", "least", "--rounds", "1"])
    with pytest.raises(SystemExit, match="`motet bench nothing` printed no figures"):
        main([str(ROOT), "nothing", "--rounds", "1"])
