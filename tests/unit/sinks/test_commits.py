"""Which commits count, and who may make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.model import Filter
from motet.protocol.contract import Closed
from motet.protocol.session.messages import Done, Failed
from motet.protocol.sinks.durable import MOST_KEYS
from tests.unit.sinks.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "staging")


def error_of(answer: Done | Failed | None) -> str:
    assert isinstance(answer, Failed)
    return answer.error


def test_an_epoch_counts_once(rig: Rig) -> None:
    sink = rig.connect()
    first = rig.commit(sink, 0, [rig.stage(0, 0, range(3))])
    assert isinstance(first, Done)
    assert first.value == "levels/q/0"
    again = rig.commit(sink, 0, [rig.stage(0, 0, range(3, 6))])
    assert isinstance(again, Done), "a success that changes nothing"
    rig.commit(sink, 2, [rig.stage(2, 0, range(6, 7))])
    assert isinstance(rig.commit(sink, 1, []), Done), "it is not above the last one"
    assert rig.blocks() == {"levels/q/0": [0, 1, 2], "levels/q/2": [6]}


def test_parts_are_in_the_order_of_their_partitions(rig: Rig) -> None:
    sink = rig.connect()
    parts = [rig.stage(0, at, range(at * 10, at * 10 + 2)) for at in (11, 2, 0)]
    rig.commit(sink, 0, parts)
    assert rig.blocks() == {"levels/q/0": [0, 1, 20, 21, 110, 111]}


def test_an_empty_batch_is_an_epoch_and_no_transaction(rig: Rig) -> None:
    sink = rig.connect()
    assert isinstance(rig.commit(sink, 0, [rig.stage(0, 0, range(0))]), Done)
    assert rig.blocks() == {}
    rig.commit(sink, 0, [rig.stage(0, 0, range(3))])
    assert rig.blocks() == {}


def test_another_query_is_refused_by_a_sink_unless_it_takes_over(rig: Rig) -> None:
    sink = rig.connect()
    rig.commit(sink, 7, [rig.stage(7, 0, range(1))])
    assert error_of(rig.commit(sink, 0, [], job="new")) == "SinkTaken"
    assert isinstance(rig.commit(sink, 0, [], job="new", takeover=True), Done)
    for takeover in (False, True):
        answer = rig.commit(sink, 8, [rig.stage(8, 0, range(1))], takeover=takeover)
        assert error_of(answer) == "SinkTaken", "it comes back no more"
    rig.rise()
    sink = rig.connect()
    assert isinstance(rig.commit(sink, 1, [], job="new"), Done)


def test_a_key_counts_once(rig: Rig) -> None:
    sink = rig.connect()
    for _ in range(2):
        answer = rig.commit(sink, None, [rig.stage(0, 0, range(2))], key="k")
        assert isinstance(answer, Done)
    assert rig.blocks() == {"levels/batch/k": [0, 1]}
    for number in range(MOST_KEYS):
        rig.commit(sink, None, [], key=f"other {number}")
    assert len(rig.core.durable.sinks.state.sinks["levels"].keys) == MOST_KEYS


def test_writes_without_a_key_push_out_no_keys(rig: Rig) -> None:
    sink = rig.connect()
    rig.commit(sink, None, [rig.stage(0, 0, range(2))], key="monday")
    for number in range(MOST_KEYS):
        rig.commit(sink, None, [], job=f"j{number}", key=f"j{number}")
    rig.commit(sink, None, [rig.stage(0, 0, range(2))], key="monday")
    assert rig.blocks() == {"levels/batch/monday": [0, 1]}


def test_a_batch_write_does_not_disturb_the_stream(rig: Rig) -> None:
    sink = rig.connect()
    rig.commit(sink, 4, [rig.stage(4, 0, range(1))])
    rig.commit(sink, None, [], job="batch", key="k")
    assert isinstance(rig.commit(sink, 5, [rig.stage(5, 0, range(1, 2))]), Done)


def test_a_batch_that_is_not_staged_is_not_committed(rig: Rig) -> None:
    sink = rig.connect()
    part = rig.stage(0, 0, range(3))
    assert error_of(rig.commit(sink, 1, [part])) == "StagingLost", "it was for another epoch"
    assert isinstance(rig.commit(sink, 0, [part]), Done)


def test_rows_were_checked_against_something_that_is_advertised(rig: Rig) -> None:
    sink = rig.connect()
    part = rig.stage(0, 0, range(3))
    narrow = Filter.parse("n < 7")
    assert error_of(rig.commit(sink, 0, [part], advertised=narrow)) == "NotAdvertised"
    assert rig.blocks() == {}


def test_a_client_that_leaves_during_a_commit_may_have_committed(rig: Rig) -> None:
    sink = rig.connect()
    rig.is_slow = True
    assert rig.commit(sink, 0, [rig.stage(0, 0, range(3))]) is None
    rig.step(Closed(sink))
    rig.is_slow = False
    rig.settle()
    assert rig.blocks() == {"levels/q/0": [0, 1, 2]}
    assert isinstance(rig.commit(rig.connect(), 0, []), Done)
    assert rig.blocks() == {"levels/q/0": [0, 1, 2]}


def test_a_process_does_not_get_answers_for_the_previous_one(rig: Rig) -> None:
    """Whose requests had the same numbers."""
    first = rig.connect()
    rig.is_slow = True
    assert rig.commit(first, 0, [rig.stage(0, 0, range(3))]) is None
    second = rig.connect()
    part = rig.stage(0, 0, range(3))
    assert rig.commit(second, 0, []) is None, "it is looked at, too"
    rig.is_slow = False
    rig.settle()
    assert rig.blocks() == {}, "the second one has committed an empty batch"
    assert isinstance(rig.commit(second, 1, [rig.stage(1, 0, range(3))]), Done)
    assert isinstance(rig.commit(second, 0, [part]), Done)
    assert rig.blocks() == {"levels/q/1": [0, 1, 2]}


def test_requests_behind_a_commit_wait_for_it(rig: Rig) -> None:
    sink = rig.connect()
    parts = [rig.stage(epoch, 0, range(epoch, epoch + 1)) for epoch in (0, 1, 2)]
    rig.is_slow = True
    for epoch in (0, 1, 2):
        assert rig.commit(sink, epoch, [parts[epoch]]) is None
    rig.is_slow = False
    rig.settle()
    assert rig.blocks() == {"levels/q/0": [0], "levels/q/1": [1], "levels/q/2": [2]}
    assert sorted(rig.answers.values(), key=lambda a: a.sequence)[-1].value == "levels/q/2"  # type: ignore[union-attr]


def test_nonsense_is_refused(rig: Rig) -> None:
    sink = rig.connect()
    part = rig.stage(0, 0, range(3))
    for epoch, parts, more in (
        (0, [part, part], {}),
        (-1, [part], {}),
        (0, [part], {"job": ""}),
        (None, [part], {"key": "k" * 1000}),
    ):
        assert error_of(rig.commit(sink, epoch, parts, **more)) == "MisuseError"
    assert rig.blocks() == {}
    assert isinstance(rig.commit(sink, 0, [part]), Done)
