"""Two sessions that both get two events get them in the same order, whatever the topics.

An event that is tagged as late is outside, and so is one that a session never got. Within a topic
the order is the order of numbers, and nothing comes twice.

For an event e and another topic U, each session that got e has the last number of U that it got
before e, and the next one that it got after e. While no session's next is at or below another one's
last, no two of them can disagree about e and U: that is compared for all sessions together, so the
work is deliveries times topics. Where it fails, which in a history without violations only gaps can
cause, the numbers of these two sessions are compared one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from motet.testing.checkers.result import CheckResult
from motet.testing.ordering.history import Given, OrderHistory, StreamSession

GUARANTEE = "notification-order"
NEVER = 2**63
Place = tuple[str, int]
"""Topic and number of an event."""


class Course(NamedTuple):
    """What a session got in order: places by position, and positions by place."""

    session: StreamSession
    places: list[Place]
    at: dict[Place, int]


class OrderBounds:
    """For one event, by topic: the highest last number and the lowest next one of all sessions."""

    __slots__ = ("last", "next")

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self.next: dict[str, int] = {}


def check(history: OrderHistory) -> CheckResult:
    verdict = CheckResult(GUARANTEE)
    courses = [_course(session, verdict) for session in history.sessions]
    bounds: dict[Place, OrderBounds] = {}
    for course in courses:
        _before(course, bounds)
    for course in courses:
        _behind(course, bounds)
    for place, found in bounds.items():
        verdict.checked += len(found.last)
        for topic, last in found.last.items():
            # Each pair of topics is seen from events of both; once is enough.
            if topic > place[0] and found.next.get(topic, NEVER) <= last:
                _compare(place, topic, courses, verdict)
    return verdict


def _course(session: StreamSession, verdict: CheckResult) -> Course:
    """Also checks that numbers of one topic grow, and that nothing comes twice."""
    places: list[Place] = []
    at: dict[Place, int] = {}
    highest: dict[str, int] = {}
    given: set[Place] = set()
    for step in session.steps:
        if not isinstance(step, Given):
            continue
        place = (step.topic, step.number)
        if not verdict.holds(place not in given):
            verdict.violated(f"{session.name} got {_name(place)} twice")
            continue
        given.add(place)
        if step.late:
            continue
        if not verdict.holds(step.number > highest.get(step.topic, 0)):
            before = (step.topic, highest[step.topic])
            verdict.violated(f"{session.name} got {_name(place)} after {_name(before)}")
            continue
        highest[step.topic] = step.number
        at[place] = len(places)
        places.append(place)
    return Course(session, places, at)


def _before(course: Course, bounds: dict[Place, OrderBounds]) -> None:
    last: dict[str, int] = {}
    for place in course.places:
        found = bounds.get(place)
        if found is None:
            found = bounds[place] = OrderBounds()
        highest = found.last
        for topic, number in last.items():
            if number > highest.get(topic, 0):
                highest[topic] = number
        last[place[0]] = place[1]


def _behind(course: Course, bounds: dict[Place, OrderBounds]) -> None:
    following: dict[str, int] = {}
    for place in reversed(course.places):
        lowest = bounds[place].next
        for topic, number in following.items():
            if number < lowest.get(topic, NEVER):
                lowest[topic] = number
        following[place[0]] = place[1]


def _compare(place: Place, topic: str, courses: list[Course], verdict: CheckResult) -> None:
    """Report two sessions that disagree about this event and one of the topic, if there are any."""
    having = [course for course in courses if place in course.at]
    before: dict[int, Course] = {}
    for course in having:
        for number in _numbers(course.places[: course.at[place]], topic):
            before.setdefault(number, course)
    for course in having:
        for number in _numbers(course.places[course.at[place] :], topic):
            if number in before:
                verdict.violated(
                    f"{before[number].session.name} got {_name((topic, number))} before "
                    f"{_name(place)}, {course.session.name} got it after that"
                )
                return


def _numbers(places: list[Place], topic: str) -> Iterator[int]:
    return (number for name, number in places if name == topic)


def _name(place: Place) -> str:
    return f"{place[0]}#{place[1]}"
