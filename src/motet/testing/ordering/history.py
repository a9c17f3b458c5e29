"""What publishers, streams and sites did in one run, as seen from outside of their machines.

A *session* is the life of a stream between two gaps: it begins with the first change that opens it,
and ends when it is closed, when it has expired, or when its client dies. Order is promised within
sessions. Events are integers, unique in a run; topics are names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

CAUSAL = "causal"
PAIRS = "pairs"
PUBLISHED = "published"
VOIDED = "Voided"


# ── sessions ─────────────────────────────────────────────────────────────────────────────


class Cut(NamedTuple):
    """From here on the session has the topic, and gets what has a higher number."""

    topic: str
    number: int


class Given(NamedTuple):
    """An event was given to the application."""

    topic: str
    number: int
    event: int
    late: bool = False


class NumbersLost(NamedTuple):
    """The application was told that it will not get these numbers in order."""

    topic: str
    numbers: tuple[int, ...]


class TopicDropped(NamedTuple):
    """From here on the session does not have the topic."""

    topic: str


Step = Cut | Given | NumbersLost | TopicDropped


@dataclass(slots=True, eq=False)
class StreamSession:
    """What one session of a stream got, in order."""

    name: str
    client: str
    """The process that it belongs to."""
    steps: list[Step] = field(default_factory=list)
    ended: bool = False
    """It was closed or has expired, or its client has died: nothing more is owed to it."""
    former: StreamSession | None = None
    """The session of the same stream before its last gap."""

    def in_order(self) -> Iterator[Given]:
        """Events that are not tagged."""
        return (step for step in self.steps if isinstance(step, Given) and not step.late)


# ── publishers ───────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class OrderedPublication:
    """An application asked to publish an event."""

    event: int
    client: str
    topic: str
    causes: tuple[int, ...] = ()
    """Events that its process had got, or published, since its last publication, and that one."""
    outcome: str = ""
    """Of its receipt: published, or the name of an error; empty: no answer yet."""
    number: int = 0
    """According to its receipt."""
    excused: bool = False
    """Its process died, so nothing is owed."""


class EventSent(NamedTuple):
    """An event was handed to the event service with a number."""

    topic: str
    number: int
    event: int


# ── sites ────────────────────────────────────────────────────────────────────────────────


class RequestId(NamedTuple):
    """One request for a number: an instance of a client counts its requests to each site. `life`
    counts how often the site has said that it has forgotten the instance."""

    client: str
    site: str
    number: int
    life: int = 0


class Numbered(NamedTuple):
    """A site sent a number to a client. `asked_at`: when the request was first sent; `at`: when
    the answer left."""

    request: RequestId
    topic: str
    number: int
    entries: tuple[tuple[str, int], ...]
    asked_at: float
    at: float


@dataclass(slots=True, eq=False)
class TopicsHeld:
    """Topics that a session had at the sites, at the most from `since` to `until`: from the
    request of the change to the answer to the next one."""

    session: str
    topics: frozenset[str]
    since: float
    until: float = inf


class UnmetWait(NamedTuple):
    """Something that an application has waited for to the end of the run."""

    who: str
    what: str


@dataclass(slots=True)
class OrderHistory:
    mode: str = CAUSAL
    sessions: list[StreamSession] = field(default_factory=list)
    publications: dict[int, OrderedPublication] = field(default_factory=dict)
    """By event."""
    sent: list[EventSent] = field(default_factory=list)
    numbered: list[Numbered] = field(default_factory=list)
    """Each request with each of its answers."""
    memberships: list[TopicsHeld] = field(default_factory=list)
    waits: list[UnmetWait] = field(default_factory=list)
    """At the end of the run."""
    names: list[tuple[str, int]] = field(default_factory=list)
    """Topics and the integers that sites gave them, each time that they were told."""
    oddities: list[tuple[str, str]] = field(default_factory=list)
    """Guarantees that were broken in front of the recorder, and how."""

    def session(self, name: str, client: str) -> StreamSession:
        found = StreamSession(name, client)
        self.sessions.append(found)
        return found
