"""Outlines: how much is where, and which transactions; from rows and from columns the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.model.ids import NO_LIMIT
from motet.protocol.reading.messages import REST, LogStep
from motet.runtime.pubend import PubendLog, Retention, StoredCut, StoredPredecessors
from motet.runtime.pubend.outline import Measure, Outlined
from tests.unit.pubend.ground import PUBEND, Time, bodies, opened, settle, shut, without_syncs

OTHER = "b2/0"


def block(pubend: PubendLog, number: int, events: int, *pubends: str) -> StoredCut:
    """A transaction, with all its events but those that are at other pubends."""
    tick = pubend.last_tick + 5
    cut = StoredCut(tick, f"t/e/{number}", number, (), pubends or (PUBEND,), tick + events)
    pubend.append_cut(cut)
    for at, each in enumerate(bodies(events)):
        pubend.append_run(tick + 1 + at, "tess", "", at + 1, [each])
    return cut


def plain(pubend: PubendLog, count: int) -> int:
    """Events of no transaction; the last tick."""
    sequence = pubend.state.last_published("alice", "e1") + 1
    pubend.append_run(pubend.last_tick + 1, "alice", "e1", sequence, bodies(count))
    return pubend.last_tick


def outline(
    pubend: PubendLog,
    since: int = 1,
    last: int = 0,
    *,
    step: int = 100,
    most: int = NO_LIMIT,
    every_block: bool = False,
) -> Outlined:
    measure = Measure(step, NO_LIMIT, most, NO_LIMIT, every_block)
    return pubend.tables.outlines.piece(since, last or pubend.durable_tick, measure)


def counts(found: Outlined) -> list[tuple[int, int, int]]:
    return [(each.upto, each.events, each.number) for each in found.steps]


@pytest.fixture(params=["rows", "columns"])
def pubend(request: pytest.FixtureRequest, tmp_path: Path) -> PubendLog:
    """250 events; two transactions, the first of two pubends; 7 events."""
    with without_syncs():
        made = opened(tmp_path, segment_bytes=1 << 20)
        plain(made, 250)
        block(made, 3, 4, PUBEND, OTHER)
        block(made, 5, 2)
        plain(made, 7)
        made.roll()
        settle(made)
        if request.param == "columns":
            assert made.seal_here() == 1
        return made


def test_steps_follow_each_other_and_tell_of_joint_transactions(pubend: PubendLog) -> None:
    found = outline(pubend)
    last = pubend.durable_tick
    assert counts(found) == [(100, 100, 0), (200, 100, 0), (254, 50, 0), (259, 4, 3), (last, 9, 0)]
    assert (found.since, found.upto, found.lost) == (1, last, False)
    assert found.steps[3].tx == "t/e/3"
    assert found.steps[3].pubends == (PUBEND, OTHER)
    assert all(each.size_bytes > each.events for each in found.steps)
    shut(pubend)


def test_every_transaction_may_be_a_step_of_its_own(pubend: PubendLog) -> None:
    found = outline(pubend, step=1000, every_block=True)
    assert [(each.events, each.number) for each in found.steps] == [
        (250, 0),
        (4, 3),
        (2, 5),
        (7, 0),
    ]
    shut(pubend)


def test_no_step_ends_within_a_transaction(pubend: PubendLog) -> None:
    for last in range(1, pubend.durable_tick + 1):
        found = outline(pubend, last=last, step=1)
        ends = {each.upto for each in found.steps}
        assert not ends & {*range(255, 259), *range(264, 266)}
        assert sum(each.events for each in found.steps) == sum(
            each.events for each in outline(pubend, last=found.upto).steps
        )
    shut(pubend)


def test_an_outline_ends_after_enough_events(pubend: PubendLog) -> None:
    found = outline(pubend, step=20, most=110)
    assert counts(found)[-1] == (120, 20, 0)
    again = outline(pubend, found.upto + 1, step=1000, most=1000)
    assert again.steps[0] == LogStep(254, 130, again.steps[0].size_bytes)
    shut(pubend)


def test_an_outline_names_what_retention_has_removed(tmp_path: Path) -> None:
    time = Time()
    pubend = opened(tmp_path, segment_bytes=1 << 20, retention=Retention(), time=time)
    plain(pubend, 5)
    cut = block(pubend, 3, 2, PUBEND, OTHER)
    pubend.roll()
    last = plain(pubend, 5)
    settle(pubend)
    assert pubend.tables.outlines.gone_cut == 0
    pubend.acknowledged(last)
    assert pubend.trim().events == 7
    assert pubend.tables.outlines.gone_cut == 3
    assert outline(pubend) == Outlined(1, cut.last, True, [])
    assert counts(outline(pubend, cut.last + 1)) == [(last, 5, 0)]
    settle(pubend)
    shut(pubend)
    again = opened(tmp_path, segment_bytes=1 << 20, time=time)
    assert again.tables.outlines.gone_cut == 3
    shut(again)


def test_the_rest_of_a_transaction_is_marked_in_an_outline(pubend: PubendLog) -> None:
    found = outline(pubend, 257, step=1000)
    rest = [each for each in found.steps if each.number == REST]
    assert found.steps[: len(rest)] == rest
    assert (sum(each.events for each in rest), rest[-1].upto) == (3, 259)
    shut(pubend)


def test_a_transaction_that_is_not_whole_yet_is_left_out(tmp_path: Path) -> None:
    pubend = opened(tmp_path, segment_bytes=1 << 20)
    last = plain(pubend, 5)
    tick = last + 5
    pubend.append_cut(StoredCut(tick, "t/e/1", 1, (), (PUBEND,), tick + 2))
    pubend.append_run(tick + 1, "tess", "", 1, bodies(1))
    settle(pubend)
    assert counts(outline(pubend)) == [(last, 5, 0)]
    assert outline(pubend, last + 1).upto == last
    pubend.append_run(tick + 2, "tess", "", 2, bodies(1))
    settle(pubend)
    assert counts(outline(pubend, last + 1)) == [(tick + 2, 2, 0)]
    shut(pubend)


def test_many_small_runs_with_gaps_between_are_counted_rightly(tmp_path: Path) -> None:
    with without_syncs():
        pubend = opened(tmp_path, segment_bytes=1 << 20)
        ticks: list[int] = []
        for number in range(300):
            first = pubend.last_tick + 1 + number % 4
            pubend.append_run(first, "alice", "e1", len(ticks) + 1, bodies(1 + number % 5))
            ticks += range(first, pubend.last_tick + 1)
        pubend.roll()
        settle(pubend)
        assert pubend.seal_here() == 1
    for since, last, step in ((1, ticks[-1], 160), (ticks[7], ticks[-9], 64), (1, ticks[-1], 10)):
        found = outline(pubend, since, last, step=step)
        before = since - 1
        for each in found.steps:
            assert each.events == sum(before < tick <= each.upto for tick in ticks)
            assert 0 < each.events < step + max(step // 16, 5)
            before = each.upto
        assert before == last
        assert len(found.steps) <= -(-len(ticks) // step)
    shut(pubend)


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_a_step_begins_where_a_publisher_continues_and_says_what_it_comes_behind(
    form: str, tmp_path: Path
) -> None:
    with without_syncs():
        made = opened(tmp_path, segment_bytes=1 << 20)
        before = plain(made, 30)
        owed, known = (("b2/0", 70), ("b3/0", 5)), (("b2/0", 60), ("b4/0", 9))
        made.append_predecessors(StoredPredecessors(before + 10, "alice", owed))
        made.append_predecessors(StoredPredecessors(before + 20, "bob", (), (0, 0), known))
        last = plain(made, 20)
        made.append_predecessors(StoredPredecessors(last + 10, "alice", owed))
        block(made, 3, 2, PUBEND, OTHER)
        made.roll()
        settle(made)
        if form == "columns":
            assert made.seal_here() == 1
    found = outline(made, step=15)
    assert counts(found)[:2] == [(15, 15, 0), (30, 15, 0)]
    assert [each.after for each in found.steps] == [
        (),
        (),
        (("b2/0", 70), ("b3/0", 5), ("b4/0", 9)),
        (),
        owed,
    ]
    assert [(each.events, each.number) for each in found.steps[2:]] == [(15, 0), (5, 0), (2, 3)]
    shut(made)
