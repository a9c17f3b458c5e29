"""In causal mode effects come behind their causes, and the orders of all sessions fit together.

The causes of an event are the events that its publisher had got or published before, and their
causes. No session gets an event in order, and one of its causes in order behind it. Besides, the
orders of all sessions together are without a circle: there is one order that every session follows.

That one order need not put every cause before its effect. T's event t is ordered before u at one
site, its publisher knows u and publishes v at a higher site, which t reaches only then: sessions
with t and u, u and v, v and t go in a circle together, though each of them has all causes in order.
"""

from __future__ import annotations

from itertools import pairwise

from motet.testing.checkers.result import CheckResult
from motet.testing.ordering.history import CAUSAL, Given, OrderHistory

GUARANTEE = "causality"
Follows = dict[int, dict[int, str]]
"""By event: those that follow it directly in a session, and the session's name."""


def check(history: OrderHistory) -> CheckResult:
    verdict = CheckResult(GUARANTEE)
    if history.mode == CAUSAL:
        _check_causes(history, verdict)
        _check_circles(history, verdict)
    return verdict


# ── effects behind causes ────────────────────────────────────────────────────────────────


def _check_causes(history: OrderHistory, verdict: CheckResult) -> None:
    """A set of events is an integer with a bit for each event that is a cause of another one. For
    runs of thousands of events: pasts grow with the history."""
    publications = history.publications.items()
    causes = dict.fromkeys(cause for _, each in publications for cause in each.causes)
    bits = {cause: 1 << place for place, cause in enumerate(causes)}
    pasts: dict[int, int] = {}
    for event, publication in publications:  # causes are published earlier
        past = 0
        for cause in publication.causes:
            past |= bits[cause] | pasts.get(cause, 0)
        if past:
            pasts[event] = past
    events = list(bits)
    for session in history.sessions if pasts else ():
        behind = 0
        for given in reversed(list(session.in_order())):
            wrong = pasts.get(given.event, 0) & behind
            verdict.checked += 1
            if wrong:
                cause = events[wrong.bit_length() - 1]
                verdict.violated(
                    f"{session.name} got {_name(given)} before its cause, event {cause}"
                )
                break
            behind |= bits.get(given.event, 0)


# ── no circle ────────────────────────────────────────────────────────────────────────────


def _check_circles(history: OrderHistory, verdict: CheckResult) -> None:
    follows: Follows = {}
    before: dict[int, int] = {}
    """By event: how many it follows directly that have no place yet."""
    for session in history.sessions:
        for one, other in pairwise(session.in_order()):
            verdict.checked += 1
            before.setdefault(one.event, 0)
            before.setdefault(other.event, 0)
            if other.event not in follows.setdefault(one.event, {}):
                follows[one.event][other.event] = session.name
                before[other.event] += 1
    ready = [event for event, count in before.items() if not count]
    while ready:
        event = ready.pop()
        del before[event]
        for follower in follows.get(event, ()):
            before[follower] -= 1
            if not before[follower]:
                ready.append(follower)
    if before:
        verdict.violated(_circle(before, follows))


def _circle(left: dict[int, int], follows: Follows) -> str:
    """A circle among these events, each of which follows another one of them."""
    leaders: dict[int, int] = {}
    for event in left:
        for follower in follows.get(event, ()):
            if follower in left:
                leaders.setdefault(follower, event)
    path: dict[int, None] = {}
    event = next(iter(left))
    while event not in path:
        path[event] = None
        event = leaders[event]
    circle = list(path)[list(path).index(event) :]
    steps = zip(circle, [*circle[1:], circle[0]], strict=True)
    return "a circle: " + ", ".join(
        f"{one} after {other} in {follows[other][one]}" for one, other in steps
    )


def _name(given: Given) -> str:
    return f"{given.topic}#{given.number}, event {given.event},"
