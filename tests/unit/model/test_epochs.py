"""Epochs are in one order, for every broker and whatever a stranger calls an epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.model.ids import (
    MOST_DIGITS,
    is_newer,
    issuer_of,
    life_of,
    make_epoch,
    newest,
    number_of,
)

NAMES = st.sampled_from(["A", "B", "B-1", "b.2", "x-7.9"])
NUMBERS = st.integers(0, 10**MOST_DIGITS - 1)


@given(NAMES, NUMBERS, NUMBERS)
def test_an_epoch_contains_its_issuer_and_its_order(broker: str, life: int, number: int) -> None:
    epoch = make_epoch(broker, life, number)
    assert (issuer_of(epoch), life_of(epoch), number_of(epoch)) == (broker, life, number)


@given(st.tuples(NAMES, NUMBERS, NUMBERS), st.tuples(NAMES, NUMBERS, NUMBERS))
def test_exactly_one_of_two_epochs_is_newer(
    one: tuple[str, int, int], two: tuple[str, int, int]
) -> None:
    first, second = make_epoch(*one), make_epoch(*two)
    assert is_newer(first, than=second) + is_newer(second, than=first) == (one != two)
    assert newest((first, second)) == (first if is_newer(first, than=second) else second)


def test_the_number_counts_first_then_the_name_then_the_life() -> None:
    ordered = ["Z-9.1", "A-1.2", "A-2.2", "B-1.2", "A-1.10"]
    for i, older in enumerate(ordered):
        for newer in ordered[i + 1 :]:
            assert is_newer(newer, than=older)
            assert not is_newer(older, than=newer)


@pytest.mark.parametrize(
    "text", ["", "B1", "B1-7", "B1-x.y", "-.", "B1-1.-5", "B1-1.²", "B1-1." + "9" * 5000, "-" * 9]
)
def test_an_invalid_epoch_is_older_than_any(text: str) -> None:
    assert number_of(text) == 0
    assert is_newer("A-1.1", than=text)
