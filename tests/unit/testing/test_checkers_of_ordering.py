"""Checkers of order across topics: content with good histories, and able to object."""

from __future__ import annotations

from itertools import combinations
from random import Random
from time import perf_counter

import pytest

from motet.testing.ordering.checkers import (
    causality,
    completeness,
    notification_order,
    numbers,
    settles,
)
from motet.testing.ordering.history import (
    PAIRS,
    PUBLISHED,
    VOIDED,
    Cut,
    EventSent,
    Given,
    Numbered,
    NumbersLost,
    OrderedPublication,
    OrderHistory,
    RequestId,
    StreamSession,
    TopicDropped,
    TopicsHeld,
    UnmetWait,
)

Place = tuple[str, int]


class Past:
    """A history by hand. Events are written as topic and number: `T1`."""

    def __init__(self, mode: str = "causal") -> None:
        self.history = OrderHistory(mode=mode)
        self._events: dict[str, int] = {}

    def event(self, word: str) -> int:
        return self._events.setdefault(word, len(self._events) + 1)

    def session(self, name: str, *words: str, late: str = "") -> StreamSession:
        """`T1` is given, `+T5` is a cut, `-T` a dropped topic, `?T3` a loss."""
        session = self.history.session(name, f"client of {name}")
        for word in words:
            topic = word.lstrip("+-?")[0]
            number = int(word.lstrip("+-?")[1:] or 0)
            if word[0] == "+":
                session.steps.append(Cut(topic, number))
            elif word[0] == "-":
                session.steps.append(TopicDropped(topic))
            elif word[0] == "?":
                session.steps.append(NumbersLost(topic, (number,)))
            else:
                is_late = word in late.split()
                session.steps.append(Given(topic, number, self.event(word), is_late))
        return session

    def published(self, word: str, *causes: str, outcome: str = PUBLISHED) -> OrderedPublication:
        event = self.event(word)
        publication = OrderedPublication(
            event,
            "shop",
            word[0],
            tuple(self.event(cause) for cause in causes),
            outcome,
            int(word[1:]),
        )
        self.history.publications[event] = publication
        self.history.sent.append(EventSent(word[0], int(word[1:]), event))
        return publication

    def numbered(
        self, request: int, word: str, *entries: str, site: str = "S0", at: float = 5.0
    ) -> None:
        self.history.numbered.append(
            Numbered(
                RequestId("shop.1", site, request),
                word[0],
                int(word[1:]),
                tuple((each[0], int(each[1:])) for each in entries),
                at - 1.0,
                at,
            )
        )


@pytest.fixture
def past() -> Past:
    return Past()


# ── notification order ───────────────────────────────────────────────────────────────────


def inversions(past: Past) -> list[str]:
    return notification_order.check(past.history).violations


def test_one_order_with_gaps_is_no_violation(past: Past) -> None:
    past.session("x", "T1", "U1", "T2", "U2", "V1")
    past.session("y", "T1", "T2", "U2")
    past.session("z", "U1", "U2", "V1", "T3")
    assert inversions(past) == []
    assert notification_order.check(past.history).checked > 10


def test_two_orders_are_noticed_and_named_once(past: Past) -> None:
    past.session("x", "T1", "U1")
    past.session("y", "U1", "T1")
    assert inversions(past) == ["y got U#1 before T#1, x got it after that"]


def test_an_inversion_across_a_topic_that_was_dropped_is_noticed(past: Past) -> None:
    """The design's example: X gets f on U and drops U, then both get e on T, Z then f."""
    past.session("x", "+T0", "+U0", "U1", "-U", "T1")
    past.session("z", "+U0", "+T0", "T1", "U1")
    assert len(inversions(past)) == 1


def test_later_events_of_the_other_topic_do_not_hide_an_inversion(past: Past) -> None:
    past.session("x", "U1", "U2", "T1", "U3")
    past.session("y", "U1", "T1", "U2", "U3")
    past.session("z", "T1", "U3")
    assert len(inversions(past)) == 1


def test_tagged_events_are_outside(past: Past) -> None:
    past.session("x", "U1", "T1", "U2")
    past.session("y", "T1", "U1", "U2", late="U1")
    past.session("z", "T1", "U2", "U1", late="U1")
    assert inversions(past) == []


def test_a_session_that_has_missed_events_is_compared_by_what_it_got(past: Past) -> None:
    """Next at or below last, but no common event disagrees."""
    past.session("x", "U5", "T1")
    past.session("y", "T1", "U3")
    assert inversions(past) == []


def test_numbers_of_a_topic_grow_and_nothing_comes_twice(past: Past) -> None:
    past.session("x", "T2", "T1")
    past.session("y", "U1", "U1")
    past.session("z", "V1", "V2", "V1", late="V1")
    assert inversions(past) == ["x got T#1 after T#2", "y got U#1 twice", "z got V#1 twice"]


def by_hand(history: OrderHistory) -> bool:
    """Is there a disagreement? Every pair of sessions, every pair of events."""
    orders = [
        {(g.topic, g.number): at for at, g in enumerate(s.in_order())} for s in history.sessions
    ]
    for one, other in combinations(orders, 2):
        common = [place for place in one if place in other]
        if any(
            (one[a] < one[b]) != (other[a] < other[b])
            for a, b in combinations(common, 2)
            if a[0] != b[0]
        ):
            return True
    return False


def test_it_finds_exactly_what_a_comparison_of_all_pairs_finds() -> None:
    """Random histories: one order, some events missing, and in half of them two exchanged."""
    found = 0
    for seed in range(400):
        random = Random(seed)
        past = Past()
        counts = dict.fromkeys("TUVW", 0)
        order = []
        for _ in range(12):
            topic = random.choice("TUVW")
            counts[topic] += 1
            order.append(f"{topic}{counts[topic]}")
        for name in "xyz":
            words = [word for word in order if random.random() < 0.7]
            if seed % 2 and name == "z" and len(words) > 1:
                at = random.randrange(len(words) - 1)
                if words[at][0] != words[at + 1][0]:
                    words[at : at + 2] = words[at + 1], words[at]
            past.session(name, *words)
        disagree = by_hand(past.history)
        assert bool(inversions(past)) == disagree, seed
        found += disagree
    assert 50 < found < 200


def test_the_work_grows_with_deliveries_times_topics() -> None:
    """Ten times as many sessions with the same topics: about ten times the time."""

    def seconds(sessions: int) -> float:
        history = OrderHistory()
        topics = [f"t{n}" for n in range(10)]
        for name in range(sessions):
            session = history.session(str(name), str(name))
            session.steps = [Given(topics[n % 10], n // 10 + 1, n) for n in range(1000)]
        began = perf_counter()
        assert not notification_order.check(history).violations
        return perf_counter() - began

    seconds(5)
    assert seconds(50) < 40 * seconds(5)


# ── causality ────────────────────────────────────────────────────────────────────────────


def circles(past: Past) -> list[str]:
    return causality.check(past.history).violations


def test_effects_behind_causes(past: Past) -> None:
    past.published("T1")
    past.published("U1", "T1")
    past.session("x", "T1", "U1")
    past.session("y", "U1", "V1")
    assert circles(past) == []


def test_an_effect_before_its_cause_is_noticed(past: Past) -> None:
    past.published("T1")
    past.published("U1", "T1")
    past.session("x", "U1", "T1")
    assert circles(past) == ["x got U#1, event 2, before its cause, event 1"]


def test_an_effect_of_an_effect_before_its_cause_is_noticed(past: Past) -> None:
    """The session never got what is between the two."""
    past.published("T1")
    past.published("U1", "T1")
    past.published("V1", "U1")
    past.session("x", "V1", "T1")
    assert len(circles(past)) == 1


def test_a_circle_of_three_sessions_is_noticed_though_no_two_disagree(past: Past) -> None:
    past.session("x", "T1", "U1")
    past.session("y", "U1", "V1")
    past.session("z", "V1", "T1")
    assert inversions(past) == []
    assert len(circles(past)) == 1


def test_causes_and_orders_together_may_go_in_a_circle(past: Past) -> None:
    """V1 is an effect of U1, and each session has its causes in order."""
    past.published("T1")
    past.published("U1")
    past.published("V1", "U1")
    past.session("x", "T1", "U1")
    past.session("y", "V1", "T1")
    assert circles(past) == []
    past.session("z", "V1", "U1")
    assert circles(past) == ["z got V#1, event 3, before its cause, event 2"]


def test_a_tagged_event_may_come_behind_its_effect(past: Past) -> None:
    past.published("T1")
    past.published("U1", "T1")
    past.session("x", "U1", "T1", late="T1")
    assert circles(past) == []


def test_mode_pairs_promises_no_causality() -> None:
    past = Past(PAIRS)
    past.session("x", "T1", "U1")
    past.session("y", "U1", "V1")
    past.session("z", "V1", "T1")
    assert circles(past) == []


# ── numbers ──────────────────────────────────────────────────────────────────────────────


def errors(past: Past) -> list[str]:
    return numbers.check(past.history).violations


def test_a_request_that_is_answered_twice_has_the_same_number(past: Past) -> None:
    past.history.memberships.append(TopicsHeld("x", frozenset("TU"), 0.0))
    past.numbered(1, "T1", "U3")
    past.numbered(1, "T1", "U3")
    past.numbered(2, "T2")
    past.published("T1")
    assert errors(past) == []


@pytest.mark.parametrize(
    ("again", "text"),
    [("T2", "request 1 of shop.1 at S0 got T#1"), ("U1", "request 1 of shop.1 at S0 got T#1")],
)
def test_another_number_for_a_request_is_noticed(past: Past, again: str, text: str) -> None:
    past.numbered(1, "T1")
    past.numbered(1, again)
    assert [each[: len(text)] for each in errors(past)] == [text]


def test_a_number_that_two_requests_get_is_noticed(past: Past) -> None:
    past.numbered(1, "T1")
    past.numbered(2, "T1")
    assert len(errors(past)) == 1
    assert "T#1 was given to request 1" in errors(past)[0]


def test_two_events_with_one_number_are_noticed(past: Past) -> None:
    past.history.sent += [EventSent("T", 1, 7), EventSent("T", 1, 8)]
    assert len(errors(past)) == 1
    past.history.sent.pop()
    assert errors(past) == []
    past.history.session("x", "x").steps.append(Given("T", 1, 9, late=True))
    assert len(errors(past)) == 1


def test_a_receipt_with_another_number_is_noticed(past: Past) -> None:
    past.published("T1").number = 2
    assert len(errors(past)) == 1


def test_a_name_with_two_integers_and_an_integer_with_two_names_are_noticed(past: Past) -> None:
    past.history.names += [("T", 0), ("T", 0), ("U", 2)]
    assert errors(past) == []
    past.history.names += [("T", 4), ("V", 2)]
    assert len(errors(past)) == 2


def test_a_timestamp_that_names_a_topic_outside_the_group_is_noticed(past: Past) -> None:
    past.history.memberships += [
        TopicsHeld("x", frozenset("TU"), 0.0, 2.0),
        TopicsHeld("y", frozenset("TV"), 7.0),
    ]
    past.numbered(1, "T1", "U1", at=2.5)
    assert errors(past) == []
    past.numbered(2, "T2", "U1", at=4.0)
    past.numbered(3, "T3", "V1", at=6.0)
    past.numbered(4, "T4", "W1", at=9.0)
    assert len(errors(past)) == 3


def test_in_mode_pairs_two_sessions_that_ever_had_both_make_a_group() -> None:
    past = Past(PAIRS)
    past.history.memberships += [
        TopicsHeld("x", frozenset("T"), 0.0, 1.0),
        TopicsHeld("x", frozenset("U"), 1.0),
        TopicsHeld("y", frozenset("TU"), 2.0, 3.0),
    ]
    past.numbered(1, "T1", "U1", at=9.0)
    assert errors(past) == []
    del past.history.memberships[2]
    assert len(errors(past)) == 1


# ── completeness ─────────────────────────────────────────────────────────────────────────


def missing(past: Past) -> list[str]:
    return completeness.check(past.history).violations


def test_what_a_session_had_behind_its_cut_is_complete(past: Past) -> None:
    for word in ("T1", "T2", "T3", "T4", "T5"):
        past.published(word)
    past.published("T6", outcome=VOIDED)
    past.session("x", "+T2", "T3", "?T4", "T5")
    past.session("y", "+T0", "T1", "T2", "T3", "-T", "+T4", "T5")
    past.session("z", "+T0", "T1", "T3", "T2", "T4", "T5", late="T2")
    past.session("ended", "+T0", "T1", "T2").ended = True
    assert missing(past) == []
    assert completeness.check(past.history).checked > 12


def test_a_missing_event_is_noticed_in_the_middle_and_at_the_end(past: Past) -> None:
    for word in ("T1", "T2", "T3"):
        past.published(word)
    past.session("x", "+T0", "T1", "T3")
    past.session("y", "+T0", "T1", "T2")
    past.session("dropped", "+T0", "T1", "T3", "-T")
    past.session("ended", "+T1", "T3").ended = True
    assert [each.split(",")[0] for each in missing(past)] == [
        "x never got T#2",
        "y never got T#3",
        "dropped never got T#2",
        "ended never got T#2",
    ]


def test_events_outside_of_what_a_session_has_are_noticed(past: Past) -> None:
    past.session("x", "+T3", "T3", "T4", "U1", "-T", "T5")
    assert missing(past) == [
        "x got T#3, its cut is 3",
        "x got U#1 without the topic",
        "x got T#5 without the topic",
    ]


# ── settles ──────────────────────────────────────────────────────────────────────────────


def test_nothing_waits_at_the_end(past: Past) -> None:
    past.published("T1")
    past.published("T2", outcome="").excused = True
    assert settles.check(past.history).violations == []
    past.published("T3", outcome="")
    past.history.waits.append(UnmetWait("x", "T#4"))
    assert len(settles.check(past.history).violations) == 2
