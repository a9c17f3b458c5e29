"""Places that tear no transaction, over streams that are made up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from motet.client.logs.query import REST, LogStep
from motet.spark.frontier import Advance, advance, whole_floor
from motet.spark.options import Vector

PUBENDS = ("A", "B", "C")
Streams = dict[str, list[LogStep]]


@st.composite
def streams(draw: st.DrawFn) -> Streams:
    """Events and transactions of one to three pubends, decided one after the other."""
    found: Streams = {name: [] for name in PUBENDS}
    ticks = dict.fromkeys(PUBENDS, 0)
    for number in range(1, draw(st.integers(1, 12)) + 1):
        members = tuple(draw(st.sets(st.sampled_from(PUBENDS), min_size=1)))
        is_plain = draw(st.booleans())
        for name in sorted(members):
            ticks[name] += draw(st.integers(1, 30))
            events = draw(st.integers(0 if is_plain else 1, 9))
            about = () if is_plain else (number, f"t{number}", tuple(sorted(members)))
            found[name].append(LogStep(ticks[name], events, events * 10, *about))
    return found


def torn(vector: Vector, whole: Streams, since: Vector | None = None) -> set[str]:
    """Transactions of which some events are before a place and others are not."""
    inside, outside = set[str](), set[str]()
    for name, steps in whole.items():
        for step in steps:
            if len(step.pubends) > 1 and (since is None or step.upto >= since[name]):
                (inside if step.upto < vector[name] else outside).add(step.tx)
    return inside & outside


def nowhere() -> Vector:
    return dict.fromkeys(PUBENDS, 1)


@given(streams(), st.integers(1, 20), st.integers(10, 200))
def test_steps_split_no_transaction_and_reach_the_end(
    whole: Streams, most_events: int, most_bytes: int
) -> None:
    at, seen = nowhere(), 0
    for _ in range(200):
        left = {name: [s for s in steps if s.upto >= at[name]] for name, steps in whole.items()}
        found = advance(at, left, most_events, most_bytes)
        assert torn(found.vector, whole) == set()
        largest = max((_size(whole, step) for each in left.values() for step in each), default=0)
        assert found.events <= max(most_events, largest)
        seen += found.events
        if found.vector == at:
            break
        at = found.vector
    assert at == {name: steps[-1].upto + 1 if steps else 1 for name, steps in whole.items()}
    assert seen == sum(step.events for steps in whole.values() for step in steps)


def _size(whole: Streams, step: LogStep) -> int:
    """Of a step with what must come with it."""
    if len(step.pubends) < 2:
        return step.events
    return sum(s.events for steps in whole.values() for s in steps if s.tx == step.tx)


@given(streams(), st.dictionaries(st.sampled_from(PUBENDS), st.integers(0, 12)))
def test_the_frontier_splits_no_transaction_and_names_lagging_pubends(
    whole: Streams, known: dict[str, int]
) -> None:
    """Given pubends of which not everything is there yet."""
    part = {name: steps[: known.get(name, len(steps))] for name, steps in whole.items()}
    found = advance(nowhere(), part)
    assert torn(found.vector, whole) == set()
    for tx, missing in found.lagging.items():
        for name in missing:
            assert tx not in {step.tx for step in part[name]}
            assert tx in {step.tx for step in whole[name]}
    if part == whole:
        assert found.lagging == {}


@given(streams(), st.dictionaries(st.sampled_from(PUBENDS), st.integers(0, 12)))
def test_the_floor_splits_no_transaction(whole: Streams, trimmed: dict[str, int]) -> None:
    """Given logs whose oldest steps have gone, each its own number of them."""
    kept = {name: steps[trimmed.get(name, 0) :] for name, steps in whole.items()}
    gone = {name: steps[: trimmed.get(name, 0)] for name, steps in whole.items()}
    cuts = {name: max((s.number for s in steps), default=0) for name, steps in gone.items()}
    first = {name: steps[-1].upto + 1 if steps else 1 for name, steps in gone.items()}
    floor = whole_floor(first, kept, cuts)
    assert all(floor[name] >= tick for name, tick in first.items())
    assert torn(floor, whole) == set()
    left = {name: [s for s in steps if s.upto >= floor[name]] for name, steps in kept.items()}
    assert advance(floor, left).lagging == {}


def test_the_rest_of_a_transaction_is_left_out() -> None:
    steps = {"A": [LogStep(5, 2, 20, REST), LogStep(9, 3, 30)]}
    assert whole_floor({"A": 3}, steps, {"A": 7}) == {"A": 6}


def test_the_frontier_does_not_wait_for_pubends_that_are_not_read() -> None:
    steps = {"A": [LogStep(5, 2, 20, 1, "t1", ("A", "Z"))]}
    assert advance({"A": 1}, steps) == Advance({"A": 6}, 2, 20, {}, {})


@given(streams(), st.integers(0, 12), st.integers(1, 20))
def test_a_pubend_added_later_is_read_to_its_end(
    whole: Streams, before: int, most_events: int
) -> None:
    """Given pubends that were read while another one was not: it has parts of transactions of
    which the others' parts were read long ago."""
    early = {"A": whole["A"], "B": whole["B"]}
    part = {name: steps[:before] for name, steps in early.items()}
    at = advance(dict.fromkeys(early, 1), part).vector
    numbers = {
        name: max((s.number for s in steps if s.upto < at[name]), default=0)
        for name, steps in early.items()
    }
    at["C"] = 1
    for _ in range(200):
        left = {name: [s for s in steps if s.upto >= at[name]] for name, steps in whole.items()}
        found = advance(at, left, most_events, behind=numbers)
        if found.vector == at:
            break
        at = found.vector
    assert at == {name: steps[-1].upto + 1 if steps else 1 for name, steps in whole.items()}


def test_the_frontier_does_not_wait_for_a_pubend_that_is_past_the_transaction() -> None:
    both = ("A", "B")
    steps = {"A": [LogStep(9, 3, 30, 2, "t2", both)], "B": [LogStep(5, 2, 20, 1, "t1", both)]}
    assert advance({"A": 6, "B": 1}, steps).vector == {"A": 6, "B": 6}, "A has a later one"
    assert advance({"A": 6, "B": 1}, {"B": steps["B"]}).lagging == {"t1": ("A",)}
    assert advance({"A": 6, "B": 1}, {"B": steps["B"]}, behind={"A": 1}).vector["B"] == 6


# ── publishers that move ─────────────────────────────────────────────────────────────────


@st.composite
def travels(draw: st.DrawFn) -> tuple[Streams, list[tuple[str, int]]]:
    """One publisher goes from pubend to pubend, among events of others, and transactions. Clocks
    differ. Also where its events are, in its order."""
    whole: Streams = {name: [] for name in PUBENDS}
    ticks = {name: draw(st.integers(0, 100)) for name in PUBENDS}
    home, own, trail = "A", list[tuple[str, int]](), dict[str, int]()
    after: tuple[tuple[str, int], ...] = ()
    for number in range(1, draw(st.integers(1, 15)) + 1):
        act = draw(st.sampled_from(("own", "own", "other", "move", "transaction")))
        if act == "transaction":
            for name in PUBENDS:
                ticks[name] += draw(st.integers(1, 30))
                whole[name].append(LogStep(ticks[name], 1, 10, number, f"t{number}", PUBENDS))
        elif act == "move":
            home = draw(st.sampled_from(PUBENDS))
            after = tuple((name, tick) for name, tick in trail.items() if name != home)
            ticks[home] = max([ticks[home], *(tick for _, tick in after)])
        else:
            name = home if act == "own" else draw(st.sampled_from(PUBENDS))
            ticks[name] += draw(st.integers(1, 30))
            is_own = act == "own"
            step = LogStep(ticks[name], 1, 10, after=after if is_own else ())
            whole[name].append(step)
            if is_own:
                after, trail[home] = (), step.upto
                own.append((home, step.upto))
    return whole, own


@given(travels(), st.integers(1, 20), st.data())
def test_no_position_swaps_the_events_of_a_publisher_that_moves(
    moved: tuple[Streams, list[tuple[str, int]]], most_events: int, data: st.DataObject
) -> None:
    """Whatever part of each log is known at the moment."""
    whole, own = moved
    at = nowhere()
    for turn in range(300):
        left = {name: [s for s in steps if s.upto >= at[name]] for name, steps in whole.items()}
        if turn < 8:
            left = {name: steps[: data.draw(st.integers(0, 4))] for name, steps in left.items()}
        found = advance(at, left, most_events)
        read = [tick < found.vector[name] for name, tick in own]
        assert read == sorted(read, reverse=True)
        if found.vector == at and turn >= 8:
            break
        at = found.vector
    assert at == {name: steps[-1].upto + 1 if steps else 1 for name, steps in whole.items()}
    assert found.ahead == {}


def test_a_step_waits_for_what_it_comes_behind_but_not_for_a_lost_range() -> None:
    steps = {"B": [LogStep(4, 4, 40), LogStep(9, 2, 20, after=(("A", 6), ("Z", 50)))]}
    waiting = advance({"A": 4, "B": 1}, steps)
    assert (waiting.vector, waiting.ahead) == ({"A": 4, "B": 5}, {"A": 6})
    assert advance({"A": 7, "B": 1}, steps).vector["B"] == 10
    assert advance({"A": 4, "B": 1}, steps, gone={"A": (4, 6)}).vector["B"] == 10
    assert advance({"A": 3, "B": 1}, steps, gone={"A": (4, 6)}).vector["B"] == 5
    assert advance({"A": 4, "B": 1}, steps, gone={"A": (4, 5)}).vector["B"] == 5
