"""Who takes over from whom: the checker can be content, and it can object."""

from __future__ import annotations

from motet.testing.checkers import sessions
from motet.testing.history import Fencing, OpeningRecord
from tests.unit.testing.past import HOP_S, Past

LATE = 1.0 + 4 * HOP_S
"""When C must have heard of what A opened at 1.0: three brokers, and one hop to spare."""


def opened(
    past: Past,
    instance: int,
    epoch: str,
    at: float,
    resume: str | None = None,
    present: tuple[str, ...] = (),
) -> None:
    broker = epoch.partition("-")[0]
    opening = OpeningRecord("alice", instance, epoch, broker, at, resume, present)
    past.history.openings.append(opening)


def fenced(past: Past, instance: int, epoch: str | None, at: float) -> None:
    past.history.fencings.append(Fencing("alice", instance, epoch, at))


def complaints(past: Past) -> list[str]:
    return sessions.check(past.history).violations


def test_the_newer_takes_over_and_the_older_is_told() -> None:
    past = Past()
    opened(past, 0, "A-1.1", 1.0)
    opened(past, 1, "C-1.2", LATE)
    fenced(past, 0, "A-1.1", 2.0)
    verdict = sessions.check(past.history)
    assert (verdict.checked, verdict.violations) == (2, [])


def test_fencing_by_an_older_session_is_a_violation() -> None:
    past = Past()
    opened(past, 0, "A-1.1", 1.0)
    opened(past, 1, "C-1.2", LATE)
    fenced(past, 1, "C-1.2", 2.0)
    (complaint,) = complaints(past)
    assert "alice (process 1) was fenced out of C-1.2 at 2.0000 s" in complaint


def test_fencing_before_the_newer_session_or_by_itself_is_a_violation() -> None:
    past = Past()
    opened(past, 0, "A-1.1", 1.0)
    fenced(past, 0, "A-1.1", 1.5)
    opened(past, 1, "C-1.2", 2.0)
    opened(past, 0, "A-1.3", 3.0)
    fenced(past, 0, "A-1.3", 3.5)
    assert len(complaints(past)) == 2


def test_a_process_without_a_session_may_be_fenced_by_any_other() -> None:
    past = Past()
    opened(past, 0, "A-1.1", 1.0)
    fenced(past, 1, None, 2.0)
    assert not complaints(past)


def test_issuing_an_epoch_older_than_a_known_one_is_a_violation() -> None:
    past = Past()
    opened(past, 0, "A-1.2", 1.0)
    opened(past, 1, "C-1.1", LATE)
    assert complaints(past) == [
        "C opened C-1.1 at 1.0400 s, although it must have known A-1.2",
    ]


def test_an_epoch_may_be_older_while_the_newer_one_is_not_known_yet() -> None:
    past = Past()
    opened(past, 0, "A-1.2", 1.0)
    opened(past, 1, "C-1.1", LATE - HOP_S / 2)
    assert not complaints(past)


def test_trouble_on_the_path_excuses_an_older_epoch() -> None:
    for place in ("A", "B", "C", ("A", "B"), ("B", "C")):
        past = Past()
        past.history.disturbed[place].touch(1.01, 1.02)
        opened(past, 0, "A-1.2", 1.0)
        opened(past, 1, "C-1.1", 9.0)
        assert not complaints(past), place
        past.history.disturbed[place] = type(past.history.disturbed[place])()
        past.history.disturbed[place].touch(2.0, 3.0)
        assert complaints(past), f"{place} was well when the news passed"


def test_a_broker_that_lost_its_state_may_issue_an_older_epoch() -> None:
    past = Past()
    past.history.amnesia["C"].touch(5.0, 5.0)
    opened(past, 0, "A-1.2", 1.0)
    opened(past, 1, "C-1.1", 9.0)
    assert not complaints(past)


def test_an_old_client_does_not_take_its_session_back() -> None:
    past = Past()
    opened(past, 0, "A-1.1", 1.0)
    opened(past, 1, "C-1.2", 2.0)
    opened(past, 0, "A-1.3", 3.0, resume="A-1.1", present=("C-1.2",))
    assert complaints(past) == [
        "alice reconnected to A with A-1.1 at 3.0000 s and was given a session, "
        "although C-1.2 is newer",
    ]


def test_a_client_may_return_if_the_other_one_has_left() -> None:
    past = Past()
    opened(past, 0, "A-1.1", 1.0)
    opened(past, 1, "C-1.2", 2.0)
    opened(past, 0, "A-1.3", 3.0, resume="A-1.1")
    assert not complaints(past)
