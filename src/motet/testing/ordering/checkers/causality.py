"""In causal mode effects come behind their causes, and the orders of all sessions fit together.

An event follows those that its publisher had got or published before, and in each session it
follows what was given before it. All of this together must be without a circle: then there is one
order of all events that every session follows. A circle of two is an effect before its cause at
one session, or a disagreement of two; longer ones need more sessions.
"""

from __future__ import annotations

from itertools import pairwise

from motet.testing.checkers.result import CheckResult
from motet.testing.ordering.history import CAUSAL, OrderHistory

GUARANTEE = "causality"


def check(history: OrderHistory) -> CheckResult:
    verdict = CheckResult(GUARANTEE)
    if history.mode != CAUSAL:
        return verdict
    behind: dict[int, list[tuple[int, str]]] = {}
    """By event: what follows it directly, and why."""
    before: dict[int, int] = {}
    """By event: how many events it follows directly that are not placed yet."""

    def follows(first: int, second: int, why: str) -> None:
        behind.setdefault(first, []).append((second, why))
        before.setdefault(first, 0)
        before[second] = before.get(second, 0) + 1
        verdict.checked += 1

    for session in history.sessions:
        for one, other in pairwise(session.in_order()):
            if one.event != other.event:
                follows(one.event, other.event, f"in {session.name}")
    for publication in history.publications.values():
        for cause in publication.causes:
            follows(cause, publication.event, f"published by {publication.client}")
    ready = [event for event, count in before.items() if not count]
    while ready:
        event = ready.pop()
        del before[event]
        for follower, _ in behind.get(event, ()):
            before[follower] -= 1
            if not before[follower]:
                ready.append(follower)
    if before:
        verdict.violated(_circle(before, behind, history))
    return verdict


def _circle(
    left: dict[int, int], behind: dict[int, list[tuple[int, str]]], history: OrderHistory
) -> str:
    """The shortest circle through an event that is in one, in words."""
    backwards: dict[int, int] = {}
    for event in left:
        for follower, _ in behind.get(event, ()):
            if follower in left:
                backwards.setdefault(follower, event)
    event, met = next(iter(left)), set[int]()
    while event not in met:  # every event that is left follows another one that is left
        met.add(event)
        event = backwards[event]
    came: dict[int, tuple[int, str]] = {}
    queue = [event]
    for one in queue:
        for follower, why in behind.get(one, ()):
            if follower in left and follower not in came:
                came[follower] = (one, why)
                queue.append(follower)
        if event in came:
            break
    steps: list[str] = []
    at = event
    while not steps or at != event:
        one, why = came[at]
        steps.append(f"{_name(at, history)} after {_name(one, history)} {why}")
        at = one
    return "; ".join(reversed(steps))


def _name(event: int, history: OrderHistory) -> str:
    publication = history.publications.get(event)
    return f"{event}" if publication is None else f"{event} on {publication.topic}"
