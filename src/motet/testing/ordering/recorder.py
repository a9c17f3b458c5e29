"""Writes the history of a run from the frames between clients and sites, and from what applications
are given.

Numbers are recorded when they leave their site, changes when a client asks and is answered. So the
history does not depend on what the machines believe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.ordering.events import Joined
from motet.protocol.sequencing.messages import (
    Changed,
    ChangeRequest,
    NumberRequest,
    Numbers,
    OrderWelcome,
    SequencingFrame,
    TopicIds,
)
from motet.testing.ordering.history import (
    Cut,
    Numbered,
    OrderHistory,
    RequestId,
    StreamSession,
    TopicDropped,
    TopicsHeld,
)

if TYPE_CHECKING:
    from motet.testing.ordering.world import World


class OrderRecorder:
    def __init__(self, world: World, history: OrderHistory) -> None:
        self._world = world
        self._history = history
        self._names: dict[int, str] = {}
        """Of topics, by integer."""
        self._asked_at: dict[RequestId, float] = {}
        self._memberships: dict[tuple[str, int], TopicsHeld] = {}
        """By session and change."""
        self._last: dict[str, TopicsHeld] = {}
        """The last one of each session that was made."""
        self._sessions: dict[str, StreamSession] = {}
        self._topics: dict[str, set[str]] = {}
        self._lives: dict[tuple[str, str], int] = {}
        """By instance and site."""
        self._highest: dict[tuple[str, str], int] = {}
        """The last request with a number in this life."""
        self.changes = 0

    # ── sites ────────────────────────────────────────────────────────────────────────────

    def ids(self, frame: TopicIds) -> None:
        for name, number in frame.ids.items():
            self._names.setdefault(number, name)
            self._history.names.append((name, number))

    def numbers(self, site: str, client: str, frame: Numbers) -> None:
        now = self._world.agenda.now
        for number, stamp in enumerate(frame.stamps, frame.first):
            if stamp is None:
                continue
            request = self._request(client, site, number)
            highest = self._highest.get((client, site), 0)
            self._highest[client, site] = max(highest, number)
            flat = stamp.entries
            entries = tuple(
                (self.name(topic), upto) for topic, upto in zip(flat[::2], flat[1::2], strict=True)
            )
            self._history.numbered.append(
                Numbered(
                    request,
                    self.name(stamp.topic),
                    stamp.number,
                    entries,
                    self._asked_at.get(request, now),
                    now,
                )
            )

    def welcome(self, site: str, client: str, frame: OrderWelcome) -> None:
        if frame.answered < self._highest.get((client, site), 0):
            self._lives[client, site] = self._lives.get((client, site), 0) + 1
            self._highest[client, site] = 0

    def _request(self, client: str, site: str, number: int) -> RequestId:
        return RequestId(client, site, number, self._lives.get((client, site), 0))

    def name(self, topic: int) -> str:
        return self._names.get(topic, f"topic {topic}")

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def said(self, client: str, site: str, frame: SequencingFrame) -> None:
        """A client sends a frame to a site."""
        now = self._world.agenda.now
        if isinstance(frame, NumberRequest):
            for number in range(frame.first, frame.first + len(frame.topics)):
                self._asked_at.setdefault(self._request(client, site, number), now)
        elif isinstance(frame, ChangeRequest):
            key = (frame.stream, frame.number)
            if key not in self._memberships:
                topics = frozenset(self.name(topic) for topic in frame.topics)
                membership = TopicsHeld(frame.stream, topics, now)
                self._memberships[key] = membership
                self._history.memberships.append(membership)

    def heard(self, frame: SequencingFrame) -> None:
        """A client gets a frame from a site."""
        if not isinstance(frame, Changed) or frame.error:
            return
        made = self._memberships[frame.stream, frame.number]
        last = self._last.get(frame.stream)
        if last is not made:
            self.changes += 1
            if last is not None:
                last.until = self._world.agenda.now
            self._last[frame.stream] = made

    def joined(self, client: str, news: Joined, before: StreamSession | None) -> StreamSession:
        """A stream has its cut. The same session, or a new one if the stream had a gap."""
        session = self._sessions.get(news.id)
        if session is None:
            if before is not None:
                before.ended = True
            session = self._sessions[news.id] = self._history.session(news.id, client)
            session.former = before
            self._topics[news.id] = set()
        having = self._topics[news.id]
        for topic in sorted(having - news.cut.keys()):
            session.steps.append(TopicDropped(topic))
        for topic, number in news.cut.items():
            if topic not in having:
                session.steps.append(Cut(topic, number))
        self._topics[news.id] = set(news.cut)
        return session
