"""What is refused, what is not leaked, and which engine is used."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import OrderedDict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from motet.errors import MisuseError
from motet.matching import FilterIndex, create_index
from motet.matching import index as room
from motet.model import Filter, attr
from motet.model.sets import Clause, Constraint, Interval
from motet.model.values import Family
from tests.unit.matching.worlds import ENGINES, HAS_NATIVE, WORLDS, Event, needs_native

if HAS_NATIVE:
    from motet.matching._native import NativeIndex


@pytest.fixture(params=ENGINES)
def index(request: pytest.FixtureRequest) -> FilterIndex:
    return create_index(request.param)


# ── refusals ─────────────────────────────────────────────────────────────────────────────


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, TypeError),
        (b"x", TypeError),
        ([], TypeError),
        (1j, TypeError),
        (2**63, OverflowError),
        (-(2**63) - 1, OverflowError),
        (10**500, OverflowError),
        (datetime(2026, 1, 1), TypeError),
        (datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))), TypeError),
        ("\ud800", UnicodeEncodeError),
    ],
)
def test_matching_invalid_values_raises(index: FilterIndex, value: object, error: type) -> None:
    index.add(1, attr("x") == 1, 0)
    for question in (index.match, index.hops):
        with pytest.raises(error):
            question({"x": value, "y": 1})  # type: ignore[dict-item]
    # Nobody asks for y, so nobody looks at it; and the refusals left nothing behind.
    assert index.match({"x": 1, "y": value}) == [1]  # type: ignore[dict-item]


@pytest.mark.parametrize("attributes", [None, [], OrderedDict(x=1), "x", SimpleNamespace()])
def test_attributes_must_be_a_dict(index: FilterIndex, attributes: object) -> None:
    index.add(1, attr("x") == 1, 0)
    with pytest.raises(TypeError):
        index.match(attributes)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        index.hops(attributes)  # type: ignore[arg-type]


def test_subclasses_of_values_count_as_values(index: FilterIndex) -> None:
    index.add(1, attr("x") == "a", 0)
    index.add(2, attr("x") == Family.TEXT, 0)
    assert index.match({"x": Text("a")}) == [1]
    assert index.match({"x": Family.TEXT}) == [2]


@pytest.mark.parametrize(
    ("key", "hop", "error"),
    [
        (-1, 0, ValueError),
        (0, -1, ValueError),
        (2**63, 0, OverflowError),
        (0, 2**63, OverflowError),
        ("a", 0, TypeError),
        (0, 1.5, TypeError),
        (None, 0, TypeError),
    ],
)
def test_invalid_keys_and_hops_are_refused(
    index: FilterIndex, key: object, hop: object, error: type
) -> None:
    with pytest.raises(error):
        index.add(key, attr("x") == 1, hop)  # type: ignore[arg-type]
    assert len(index) == 0


def test_a_key_is_used_once(index: FilterIndex) -> None:
    index.add(1, attr("x") == 1, 0)
    with pytest.raises(ValueError, match="in the index already"):
        index.add(1, attr("y") == 1, 1)
    assert index.match({"x": 1, "y": 1}) == [1]
    assert index.hops({"x": 1, "y": 1}) == 1


def test_a_mask_that_fits_no_memory_is_an_error(index: FilterIndex) -> None:
    index.add(1, attr("x") == 1, 2**62)
    with pytest.raises((MemoryError, OverflowError)):
        index.hops({"x": 1})
    index.remove(1)
    assert index.hops({"x": 1}) == 0


def _shaped(*intervals: object, nan: object = False, absent: object = False) -> object:
    constraint = Constraint(intervals, nan, absent)  # type: ignore[arg-type]
    return SimpleNamespace(clauses=(Clause((("x", constraint),)),))


NUMBER = Family.NUMBER


@pytest.mark.parametrize(
    "shape",
    [
        None,
        "x = 1",
        SimpleNamespace(clauses=None),
        SimpleNamespace(clauses=[]),
        SimpleNamespace(clauses=(1,)),
        SimpleNamespace(clauses=((1, 2),)),
        SimpleNamespace(clauses=(((1,),),)),
        SimpleNamespace(clauses=((((1, Constraint()),),),)),
        SimpleNamespace(clauses=(((("x", ()),),),)),
        SimpleNamespace(clauses=(((("x", Constraint()), ("x",)),),)),
        _shaped(()),
        _shaped(None),
        _shaped(nan=1),
        _shaped(absent="yes"),
        _shaped((9, 1, 2, False, False)),
        _shaped(("1", 1, 2, False, False)),
        _shaped((10**30, 1, 2, False, False)),
        _shaped(Interval(NUMBER, "a", 2)),
        _shaped(Interval(NUMBER, 1, b"a")),  # type: ignore[arg-type]
        _shaped(Interval(NUMBER, 2**64, None)),
        _shaped(Interval(NUMBER, float("nan"), None)),
        _shaped(Interval(NUMBER, 1, 2, 0, 1)),  # type: ignore[arg-type]
        _shaped(Interval(Family.TEXT, "\ud800", None)),
        _shaped(Interval(Family.TIME, datetime(2026, 1, 1), None)),
        _shaped(Interval(NUMBER, 5, 6), Interval(NUMBER, 1, 2)),
    ],
)
@needs_native
def test_the_native_index_refuses_what_is_no_filter(shape: object) -> None:
    """C reads tuples by position: whatever is in them, it must not crash nor half-add."""
    index = create_index("native")
    index.add(5, Filter.parse("x = 1 or y = 2"), 0)
    for ask in (
        lambda: index.add(1, shape, 7),  # type: ignore[arg-type]
        lambda: index.overlapping(shape),  # type: ignore[arg-type]
        lambda: index.overlapping_hops(shape),  # type: ignore[arg-type]
        lambda: index.covering(shape),  # type: ignore[arg-type]
        lambda: index.covered(shape),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, AttributeError, ValueError, OverflowError)):
            ask()
    assert len(index) == 1
    assert index.match({"x": 1}) == [5]


@needs_native
def test_an_exception_of_a_python_callback_is_passed_on() -> None:
    def covers(_wide: Filter, _narrow: Filter) -> bool:
        raise LookupError("no")

    index = NativeIndex(covers)
    for key in range(5):
        index.add(key, Filter.parse("x < 5 or x > 3"), 0)
    with pytest.raises(LookupError):
        index.covering(Filter.parse("x > 0"))
    assert index.match({"x": 4}) == [0, 1, 2, 3, 4]


@needs_native
def test_an_index_may_change_during_a_python_callback() -> None:
    def covers(_wide: Filter, _narrow: Filter) -> bool:
        for key in range(5):
            if key in shifting:
                shifting.remove(key)
        return True

    shifting = NativeIndex(covers)
    for key in range(5):
        shifting.add(key, Filter.parse("x < 5 or x > 3"), 0)
    assert shifting.covering(Filter.parse("x > 0")) == [0, 1, 2, 3, 4]
    assert len(shifting) == 0


# ── memory ───────────────────────────────────────────────────────────────────────────────


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@needs_native
def test_memory_does_not_grow_with_time() -> None:
    random = Random(8)
    world = WORLDS[3]
    known = [world.filter(random) for _ in range(1500)]
    events = [world.event(random) for _ in range(50)]

    def live_once(index: FilterIndex, turn: int) -> None:
        for key, each in enumerate(known):
            index.add(key, each & (attr(f"only{turn}.{key % 40}") > 0), (key + turn) % 300)
        for event in events:
            index.match(event)
            index.hops(event)
        index.covering(known[0])
        index.overlapping(known[1])
        with pytest.raises(TypeError):
            index.hops({"kind": None})  # type: ignore[dict-item]
        for key in range(len(known)):
            index.remove(key)

    index = create_index("native")
    for turn in range(4):
        live_once(index, turn)
    gc.collect()
    before = _resident_bytes()
    for turn in range(4, 24):
        live_once(index, turn)
        if turn % 4 == 0:
            index = create_index("native")
    gc.collect()
    assert _resident_bytes() - before < 8 << 20


@needs_native
def test_references_are_given_back() -> None:
    each = Filter.parse("x = 'some text' or y > 1")
    event: Event = {"x": "some text", "y": 5}
    text = event["x"]
    index = create_index("native")
    before = sys.getrefcount(each), sys.getrefcount(event), sys.getrefcount(text)
    for key in range(50):
        index.add(key, each, key)
    assert sys.getrefcount(each) == before[0] + 50
    for _ in range(10):
        index.match(event)
        index.hops(event)
        index.covering(each)
        index.covered(each)
        index.overlapping(each)
    with pytest.raises(ValueError, match="already"):
        index.add(1, each, 0)
    for key in range(25):
        index.remove(key)
    assert sys.getrefcount(each) == before[0] + 25
    del index
    assert (sys.getrefcount(each), sys.getrefcount(event), sys.getrefcount(text)) == before


# ── the choice of the engine ─────────────────────────────────────────────────────────────


def _engine_with(setting: str) -> str:
    code = (
        "from motet.matching import ENGINE, create_index;"
        "print(ENGINE, type(create_index()).__name__)"
    )
    environment = {**os.environ, "MOTET_MATCHER": setting}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    return done.stdout.strip() or done.stderr


@needs_native
def test_the_environment_forces_the_engine() -> None:
    assert _engine_with("python") == "python PythonIndex"
    assert _engine_with("native") == "native NativeIndex"
    assert _engine_with("") == "native NativeIndex"
    assert "no matcher is called 'fast'" in _engine_with("fast")


def test_the_engine_can_be_named() -> None:
    assert type(create_index("python")).__name__ == "PythonIndex"
    with pytest.raises(MisuseError, match="use 'native' or 'python'"):
        create_index("quantum")


def test_a_missing_native_engine_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_NATIVE_IS_BUILT", False)
    with pytest.raises(MisuseError, match="build_ext --inplace"):
        create_index("native")
