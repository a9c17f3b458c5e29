"""Which member of a cell is believed, and since when."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from motet.protocol.cell.belief import MOST_DOUBTED, Beliefs, counts
from motet.protocol.cell.messages import MemberFrame
from motet.protocol.delivery.messages import AckExpected, AckUp, Knowledge, Nack
from motet.protocol.delivery.spans import Span
from motet.protocol.link.machine import LinkRecord
from motet.protocol.publication import Publication

OURS = LinkRecord("C", life=7, incarnation=3, asked=5, told=4)
"""We are in life 7, C is in life 3; we have sent it 5 subscriptions, it has sent us 4."""
EVENT = Publication("alice", 1, Raw(b""))


def said(frame: Any, *, sync: int = 1, asked: int = 4, told: int = 5, life: int = 3) -> MemberFrame:
    return MemberFrame("c1", sync, life, 7, asked, told, frame)


def silence(since: int, upto: int) -> Knowledge:
    return Knowledge("P.1", Span(since, upto))


def test_silence_counts_if_its_sender_knows_all_that_we_asked() -> None:
    assert counts(said(silence(1, 9), told=5), OURS, 5)
    assert not counts(said(silence(1, 9), told=4), OURS, 5)
    assert counts(said(silence(1, 9), told=0, sync=0), OURS, 5), "the head always knows"


def test_an_acknowledgement_counts_if_its_sender_knows_all_that_we_were_told() -> None:
    assert counts(said(AckUp("P.1", 9), asked=4), OURS, 5)
    assert not counts(said(AckUp("P.1", 9), asked=3), OURS, 5)


def test_messages_of_another_incarnation_never_count_but_nacks_are_answered() -> None:
    for sync in (0, 1):
        assert not counts(said(silence(1, 9), life=2, sync=sync), OURS, 5)
    assert counts(said(Nack("P.1", ((1, 2),)), life=2), OURS, 5)


def test_events_count_from_any_member() -> None:
    beliefs = Beliefs()
    span = Span(10, 20, [12, 15], [EVENT, EVENT])
    frames = beliefs.weigh(said(Knowledge("P.1", span), told=4), OURS, 5)
    assert [each.span for each in frames if isinstance(each, Knowledge)] == [
        Span(12, 12, [12], [EVENT]),
        Span(15, 15, [15], [EVENT]),
    ]


def test_doubted_silence_counts_once_its_teller_has_caught_up_without_a_break() -> None:
    beliefs = Beliefs()
    assert beliefs.weigh(said(silence(1, 9), told=4), OURS, 5) == []
    assert beliefs.weigh(said(silence(10, 19), told=4), OURS, 5) == []
    newer = replace(OURS, asked=6)
    assert beliefs.weigh(said(silence(20, 29), told=5), newer, 6) == [
        silence(1, 9),
        silence(10, 19),
    ]
    assert beliefs.weigh(said(silence(30, 39), told=6), newer, 6) == [
        silence(20, 29),
        silence(30, 39),
    ]


def test_doubted_silence_is_dropped_if_its_sender_restarts_its_synchronisation() -> None:
    beliefs = Beliefs()
    beliefs.weigh(said(silence(1, 9), told=4), OURS, 5)
    assert beliefs.weigh(said(silence(10, 19), sync=2), OURS, 5) == [silence(10, 19)]


def test_doubted_acknowledgements_must_know_what_we_know_by_now() -> None:
    beliefs = Beliefs()
    ack = AckUp("P.1", 9)
    assert beliefs.weigh(said(ack, asked=3), OURS, 5) == []
    newer = replace(OURS, told=5)
    assert beliefs.weigh(said(silence(1, 2), asked=4), newer, 5) == [silence(1, 2)]
    assert beliefs.weigh(said(silence(3, 4), asked=5), newer, 5) == [ack, silence(3, 4)]


def test_the_amount_of_doubted_silence_is_bounded() -> None:
    beliefs = Beliefs()
    for at in range(MOST_DOUBTED + 3):
        beliefs.weigh(said(silence(at, at), told=4), OURS, 5)
    assert len(beliefs.weigh(said(silence(999, 999)), OURS, 5)) == MOST_DOUBTED + 1


def test_a_member_that_may_miss_starts_is_believed_only_to_expect_acknowledgement() -> None:
    expected = AckExpected("P.1", 9, ())
    assert Beliefs().weigh(said(expected, told=4), OURS, 5) == [AckExpected("P.1", 9, None)]
