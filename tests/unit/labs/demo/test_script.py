"""Lots: every case is in exactly one, whatever cases are called."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.errors import MisuseError
from motet_labs.demo.script import Attributes, Key, Script, divided

NAMES = st.one_of(
    st.lists(st.text(max_size=3), min_size=1),
    st.lists(st.integers(-100, 100), min_size=1),
    st.lists(st.floats(allow_nan=False), min_size=1),
    st.lists(st.datetimes().map(lambda time: time.replace(tzinfo=UTC)), min_size=1),
)


@given(cases=NAMES, most=st.integers(1, 7))
def test_every_case_is_in_one_lot(cases: list[str] | list[int] | list[datetime], most: int) -> None:
    lots = divided(cases, most)
    assert len(lots) == min(most, len(set(cases)))
    sizes: Counter[str] = Counter()
    for case in set(cases):
        (lot,) = [each for each in lots if each.filter.matches({"case": case})]
        sizes[lot.name] += 1
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_the_script_lists_the_events_owed_to_each_client() -> None:
    events: dict[Key, Attributes] = {
        ("p", 1): {"case": "a", "step": "s"},
        ("p", 2): {"case": "b"},
        ("p", 3): {"note": "of no case"},
        ("p", 4): {"case": "b", "step": "s", "transition": "SUSPEND"},
        ("p", 5): {"case": "b", "step": "s", "transition": "Start"},
    }
    script = Script(events, 2)
    assert script.cases == 2
    assert script.lot_of == {
        ("p", 1): "lot-01", ("p", 2): "lot-02", ("p", 4): "lot-02", ("p", 5): "lot-02"
    }  # fmt: skip
    assert script.steps == {("p", 1), ("p", 4), ("p", 5)}
    assert script.counted == {("p", 1), ("p", 5)}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"step": "s"}, "--column case=NAME"),
        ({"case": "a"}, "--column step=NAME"),
    ],
)
def test_a_log_must_have_cases_and_steps(event: Attributes, said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        Script({("p", 1): event}, 2)


def test_cases_of_two_kinds_are_refused() -> None:
    with pytest.raises(MisuseError, match="several types"):
        divided(["a", 1], 2)
