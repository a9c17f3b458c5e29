"""A receipt means that each session that had the topic gets the event in order, or is told.

What a session owes for a topic are the numbers above its cut: up to the last one that it got in
order, and all of them if it still has the topic at the end. Each of these that has a receipt was
given, in order or tagged as late, also during the gap before the session, or the application was
told that it is lost. Nothing is owed for what a session has dropped, behind that number, nor after
a session has ended: by a gap, it was told.

Also: a session gets nothing of a topic that it does not have, and nothing up to its cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from motet.testing.checkers.result import CheckResult
from motet.testing.ordering.history import (
    PUBLISHED,
    Cut,
    Given,
    NumbersLost,
    OrderHistory,
    StreamSession,
    TopicDropped,
)

GUARANTEE = "completeness"


@dataclass(slots=True)
class _Part:
    """One time between the cut and the end of a topic in a session."""

    topic: str
    cut: int
    met: set[int] = field(default_factory=set)
    """Numbers given or told."""
    last: int = 0
    kept: bool = True
    """The session has it to the end of the run."""


def check(history: OrderHistory) -> CheckResult:
    verdict = CheckResult(GUARANTEE)
    receipts: dict[str, dict[int, int]] = {}
    for publication in history.publications.values():
        if publication.outcome == PUBLISHED:
            receipts.setdefault(publication.topic, {})[publication.number] = publication.event
    numbers = {topic: sorted(found) for topic, found in receipts.items()}
    for session in history.sessions:
        tagged = _tagged(session.former)
        for part in _parts(session, verdict):
            upto = part.last if session.ended or not part.kept else None
            for number in numbers.get(part.topic, ()):
                if number <= part.cut:
                    continue
                if upto is not None and number > upto:
                    break
                verdict.expect(
                    number in part.met or (part.topic, number) in tagged,
                    "{} never got {}#{}, event {}, which has a receipt; its cut is {}",
                    session.name,
                    part.topic,
                    number,
                    receipts[part.topic][number],
                    part.cut,
                )
    return verdict


def _tagged(former: StreamSession | None) -> set[tuple[str, int]]:
    """What the stream was given during its last gap."""
    steps = former.steps if former is not None else ()
    return {(each.topic, each.number) for each in steps if isinstance(each, Given) and each.late}


def _parts(session: StreamSession, verdict: CheckResult) -> list[_Part]:
    having: dict[str, _Part] = {}
    found: list[_Part] = []
    for step in session.steps:
        if isinstance(step, Cut):
            if step.topic not in having:
                having[step.topic] = _Part(step.topic, step.number)
                found.append(having[step.topic])
            continue
        part = having.get(step.topic)
        if isinstance(step, TopicDropped):
            if part is not None:
                part.kept = False
                del having[step.topic]
        elif isinstance(step, NumbersLost):
            if part is not None:
                part.met.update(step.numbers)
        elif part is None:
            verdict.violated(f"{session.name} got {step.topic}#{step.number} without the topic")
        else:
            verdict.expect(
                step.number > part.cut or step.late,
                "{} got {}#{}, its cut is {}",
                session.name,
                step.topic,
                step.number,
                part.cut,
            )
            part.met.add(step.number)
            if not step.late:
                part.last = max(part.last, step.number)
    return found
