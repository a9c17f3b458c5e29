"""Slices of a stream: whole steps, all of them once, about equal."""

from __future__ import annotations

import pytest

from motet.client.logs.query import LogStep
from motet.spark.slices import divided


def sizes(events: list[int], slices: int) -> list[int]:
    """The sizes of the slices of steps with so many events, at every third tick."""
    steps, tick = [], 0
    for count in events:
        tick += 3 * count
        steps.append(LogStep(tick, count, 100 * count, 0, "", ()))
    found = list(divided(1, steps, slices))
    firsts = [since for since, _, _ in found]
    lasts = [upto for _, upto, _ in found]
    assert firsts == [1, *(upto + 1 for upto in lasts[:-1])]
    assert lasts[-1] == tick
    assert {*lasts} <= {each.upto for each in steps}
    return [count for _, _, count in found]


@pytest.mark.parametrize(
    ("events", "slices", "found"),
    [
        ([10] * 100, 4, [250] * 4),
        ([2000], 3, [2000]),
        ([1, 100, 1], 3, [1, 100, 1]),
        ([1] * 10, 4, [3, 2, 3, 2]),
        ([104] * 96 + [16], 4, [2496, 2496, 2496, 2512]),
    ],
)
def test_slices_are_about_equal(events: list[int], slices: int, found: list[int]) -> None:
    assert sizes(events, slices) == found


@pytest.mark.parametrize("slices", range(1, 41))
def test_slices_are_as_many_as_requested(slices: int) -> None:
    assert len(sizes([7] * 160, slices)) == slices
