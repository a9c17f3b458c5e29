"""Filters by column say what `Filter.matches` says, of every event."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from math import inf, nan
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.model import Event, Filter, Value, attr, decode_body
from motet.model.limits import INT_MAX, INT_MIN
from motet.runtime.pubend import PubendLog, columns, sealing
from tests.unit.model.strategies import any_attributes, any_values, attributes, filters
from tests.unit.pubend.ground import Row, opened, rows, settle, shut, without_syncs

Events = list[dict[str, Value]]


def sealed(folder: Path, events: Events) -> PubendLog:
    """A pubend with these events by columns."""
    pubend = opened(folder, segment_bytes=1 << 20)
    pubend.append_run(1, "alice", "e1", 1, [Event(each, b"payload").encode() for each in events])
    pubend.roll()
    settle(pubend)
    assert pubend.seal_here() == 1
    return pubend


def check(events: Events, asked: list[Filter], root: str) -> None:
    """Every attribute gets its columns here, however odd the events are."""
    with tempfile.TemporaryDirectory(dir=root) as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "LEAST_ROW_BYTES", 1 << 20)
        patch.setattr(columns.BlockReader, "all", never)
        pubend = sealed(Path(name), events)
        for filter in asked:
            found = [row.tick for row in rows(pubend.read(1, filter=filter))]  # type: ignore[union-attr]
            wanted = [tick for tick, each in enumerate(events, 1) if filter.matches(each)]
            assert found == wanted, f"{filter} on {events}"
        shut(pubend)


def never(self: object, sieve: object) -> None:
    raise AssertionError(f"{self} was read by rows for {sieve}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Nothing here is about durability, and hundreds of logs are made: the disk need not sync."""
    with without_syncs():
        yield str(tmp_path_factory.mktemp("selection"))


@settings(max_examples=120, deadline=None)
@given(
    st.lists(attributes(), min_size=1, max_size=40), st.lists(filters(), min_size=1, max_size=12)
)
def test_selection_agrees_with_the_model_for_edge_values(
    root: str, events: Events, asked: list[Filter]
) -> None:
    check(events, asked, root)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Events, list[Filter]]:
    """Any values at all, and filters with bounds taken from among them."""
    events = draw(st.lists(any_attributes(), min_size=1, max_size=12))
    names = sorted({name for each in events for name in each}) or ["a"]
    known = [value for each in events for value in each.values() if value == value]
    values = st.sampled_from(known) | any_values() if known else any_values()
    values = values.filter(lambda value: value == value)
    made = []
    for _ in range(8):
        name = attr(draw(st.sampled_from(names)))
        value = draw(values)
        shape = draw(st.integers(0, 6))
        if isinstance(value, bool) and shape in (1, 2, 3):
            shape = 0
        if shape == 0:
            made.append(name == value)
        elif shape == 1:
            made.append(name > value)  # type: ignore[operator]
        elif shape == 2:
            made.append(name <= value)  # type: ignore[operator]
        elif shape == 3:
            made.append(name != value)
        elif shape == 4:
            made.append(name.isin(draw(st.lists(values, min_size=1, max_size=8))))
        elif shape == 5:
            made.append(name.is_null())
        else:
            made.append(name.is_not_null())
    both = [one & two for one, two in pairwise(made)]
    either = [one | two for one, two in pairwise(made)]
    return events, [*made, *both, *either]


@settings(max_examples=80, deadline=None)
@given(worlds())
def test_selection_agrees_with_the_model_for_any_values(
    root: str, world: tuple[Events, list[Filter]]
) -> None:
    check(*world, root)


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)

EDGES: Events = [
    {"a": value}  # type: ignore[dict-item]
    for value in (
        *(True, False, 0, 1, -1, 0.0, -0.0, 1.0, 1.5, nan, inf, -inf),
        *(INT_MIN, INT_MAX, 2**53, 2**53 + 1, 2.0**53, 2.0**63, -(2.0**63), 1e300),
        *("", "a", "ab", "abc", "b", "\U0010ffff", "é", NOON),
    )
]

ASKED = (
    "a = 0",
    "a = 1",
    "a = true",
    "a != true",
    "a >= 9007199254740993",
    "a > 9007199254740992",
    "a < 9007199254740993",
    "a <= 9223372036854775807",
    "a < 9223372036854775807",
    "a > 9223372036854775807",
    "a >= -9223372036854775808",
    "a < -9223372036854775808",
    "a > 0.5",
    "a <= 1.5",
    "a < 1e301",
    "a > -1e301",
    "a in (0, 1, 1.5, 9007199254740993, 1e300)",
    "a in (1, 2, 3, 4, 5)",
    "a in ('a', 'b', 1, true)",
    "a like 'a%'",
    "a like 'ab%'",
    "a != 'a'",
    "a != 0",
    "a is null",
    "a is not null",
    "b is null",
    "b is not null",
    "a between 1 and 2 or a like 'b%'",
    "a > 1 and b is null",
    "a < timestamp '2026-01-02T12:00:00.000001Z'",
    "a != timestamp '2026-01-02T12:00:00Z'",
)


@pytest.mark.parametrize("copies", [1, 40])
def test_at_the_edges_of_every_family(root: str, copies: int) -> None:
    """With many copies, texts are numbered, and hardly any row is fetched alone."""
    asked = [Filter.parse(text) for text in ASKED]
    numbers = [attr("a") >= -inf, attr("a") <= inf, attr("a") > -inf, attr("a") < inf]
    check([*EDGES, {}] * copies, [*asked, *numbers], root)


def test_attributes_without_columns_are_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "MAX_COLUMNS", 3)
    for limit in (100, 5):
        monkeypatch.setattr(sealing, "MAX_LEFTOVERS", limit)
        folder = tmp_path / str(limit)
        events: Events = [{f"name{number}": number, "all": number} for number in range(30)]
        pubend = sealed(folder, events)
        for text, wanted in (
            ("name7 >= 0", [7]),
            ("name29 = 29 or all = 3", [3, 29]),
            ("name29 is null and all > 27", [28]),
            ("all > 27", [28, 29]),
            ("nobody is null and all = 1", [1]),
            ("nobody = 1", []),
        ):
            found = rows(pubend.read(1, filter=Filter.parse(text)))
            assert [decode_body(row.body)[0]["all"] for row in found if isinstance(row, Row)] == (
                wanted
            ), text
        shut(pubend)


def test_rare_attributes_do_not_blow_up_the_file(tmp_path: Path) -> None:
    """A thousand attributes that one event each has: their columns would be mostly holes."""
    events: Events = [{"common": number, f"rare{number}": number} for number in range(2000)]
    pubend = sealed(tmp_path, events)
    rows_bytes = sum(len(Event(each, b"payload").encode()) for each in events)
    assert pubend.holdings.size_bytes < 10 * rows_bytes
    (row,) = rows(pubend.read(1, filter=Filter.parse("rare77 = 77")))
    assert isinstance(row, Row)
    assert row.tick == 78
    shut(pubend)
