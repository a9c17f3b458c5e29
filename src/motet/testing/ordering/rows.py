"""A history of order across topics as rows, for the audit: what recorders of real clients and sites
write, too."""

from __future__ import annotations

from math import inf
from pathlib import Path

from motet.audit.files import HistoryWriter
from motet.protocol.sequencing.messages import LAST_NUMBER
from motet.testing.ordering.history import (
    PUBLISHED,
    Cut,
    Given,
    NumbersLost,
    OrderHistory,
    StreamSession,
    TopicDropped,
)


def write_history(history: OrderHistory, folder: Path | str, run: str) -> None:
    """Add a run to a history. The digest of an event is its number in the run."""
    into = HistoryWriter(folder, run=run, part=run)
    places = _places(history)
    for session in history.sessions:
        _write_session(into, history, session, places)
    _write_publications(into, history, places)
    ids = dict(history.names)
    for name, number in ids.items():
        into.add("order_topics", topic=name, id=number)
    for nth, each in enumerate(history.numbered):
        request = each.request
        into.add(
            "order_numbers",
            site=request.site,
            client=_instance(request.client, request.life),
            request=request.number,
            topic=each.topic,
            number=each.number,
            entries=[part for name, upto in each.entries for part in (ids.get(name, -1), upto)],
            nth=nth,
            at=each.at,
        )
    into.flush()


def _instance(client: str, life: int) -> str:
    """A site that has forgotten an instance counts it as another one."""
    return f"{client} in life {life}" if life else client


class _Places:
    """Which publication of its client each event is, and after how many of them each other event
    was known to a client."""

    def __init__(self) -> None:
        self.nth: dict[int, int] = {}
        self.known: dict[tuple[str, int], int] = {}
        self.made: dict[str, int] = {}


def _places(history: OrderHistory) -> _Places:
    found = _Places()
    for event, publication in history.publications.items():
        client = publication.client
        before = found.made.get(client, 0)
        for cause in publication.causes:
            found.known.setdefault((client, cause), before)
        found.made[client] = found.nth[event] = before + 1
    return found


def _write_session(
    into: HistoryWriter, history: OrderHistory, session: StreamSession, places: _Places
) -> None:
    former = session.former
    into.add(
        "order_streams",
        stream=session.name,
        client=session.client,
        former="" if former is None else former.name,
        mode=history.mode,
        ended_at=0.0 if session.ended else inf,
    )
    having: dict[str, None] = {}
    for nth, step in enumerate(session.steps):
        place = {"stream": session.name, "nth": nth, "topic": step.topic}
        match step:
            case Cut():
                having[step.topic] = None
                into.add("order_cuts", **place, what="cut", number=step.number)
            case TopicDropped():
                having.pop(step.topic, None)
                into.add("order_cuts", **place, what="dropped")
            case NumbersLost():
                for number in step.numbers:
                    into.add("order_lost", **place, number=number)
            case Given():
                known = places.known.get(
                    (session.client, step.event), places.made.get(session.client, 0)
                )
                into.add(
                    "order_given",
                    **place,
                    client=session.client,
                    known=known,
                    number=step.number,
                    digest=step.event,
                    is_late=step.late,
                )
    for topic in () if session.ended else having:  # all is owed to it, to the end of the run
        end = {"stream": session.name, "nth": len(session.steps), "topic": topic}
        into.add("order_cuts", **end, what="reached", number=LAST_NUMBER)


def _write_publications(into: HistoryWriter, history: OrderHistory, places: _Places) -> None:
    for sent in history.sent:
        publication = history.publications[sent.event]
        into.add(
            "order_published",
            client=publication.client,
            nth=places.nth[sent.event],
            topic=sent.topic,
            number=sent.number,
            digest=sent.event,
        )
    for event, publication in history.publications.items():
        if publication.outcome:
            into.add(
                "order_receipts",
                client=publication.client,
                nth=places.nth[event],
                topic=publication.topic,
                number=publication.number,
                outcome="published" if publication.outcome == PUBLISHED else publication.outcome,
            )
