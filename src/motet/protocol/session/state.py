"""Durable state of sessions."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from motet.model import OpId
from motet.protocol.session.messages import Decided, Done, Failed, Over

MOST_NEWS = 256
GRANTED = 1 << 40
"""First sequence of entries that a broker adds for a client in a plan; higher than any number of
requests."""


class Session(Struct):
    """One epoch of one client. `requests` is the sequence of the last request received."""

    client: str
    epoch: str
    requests: int = 0
    unanswered: dict[int, None] = field(default_factory=dict)
    failures: dict[int, Done | Failed] = field(default_factory=dict)
    """Answers that were not just `Done`, kept as long as the client may ask for them again."""
    instance: str = ""
    """The process that opened or resumed the session last."""
    keep_s: float = 0.0
    """How long a durable session outlives its connection; 0: the broker's lease applies."""
    left_at: float | None = None
    """When its last connection ended; None while there is one, according to the journal."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Of a durable session, by pubend: the tick up to which its client had acknowledged everything
    when this was last journaled."""
    done: dict[int, dict[str, int]] = field(default_factory=dict)
    """The same for single subscriptions that were further when their process left, by request."""
    names: dict[int, str] = field(default_factory=dict)
    """The client's names of the advertisements and subscriptions in force, by request."""
    since: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of subscriptions that reach into the past, by request: the tick to start from, by pubend."""
    total_order: bool = False
    """Events of all pubends are delivered in one order."""
    advertised: bool = False
    """The client may have published events."""
    taken: int = 0
    """The last publication received before its last connection ended."""
    published: int = 0
    """Publications up to this one were in a destroyed log; their numbers must not be reused."""
    uncounted: bool = False
    """Only the client knows how many of its publications were in a destroyed log."""
    news: list[Decided | Over] = field(default_factory=list)
    """The latest notifications about transactions, and all that report entries added by plans. They
    are repeated to a reconnecting client, because they may have been lost with the connection.
    Duplicates do no harm."""
    willing: bool = False
    """Its broker may carry out its part of plans."""
    granted: int = 0
    """Number of entries that its broker has added for it."""

    @property
    def durable(self) -> bool:
        return self.keep_s > 0

    def expires_at(self, now: float, lease_s: float) -> float:
        """When a session expires whose client has just left, or whose broker has just restarted. A
        restart renews only a lease; otherwise a durable session might never expire."""
        if not self.durable:
            return now + lease_s
        left_at = now if self.left_at is None else self.left_at
        return max(left_at + self.keep_s, now + min(lease_s, self.keep_s))

    def note(self, cursors: Mapping[str, int]) -> None:
        """Its client has acknowledged pubends up to these ticks."""
        for pubend, upto in cursors.items():
            self.cursors[pubend] = max(upto, self.cursors.get(pubend, 0))

    def hear(self, told: Decided | Over) -> None:
        self.news.append(told)
        if len(self.news) >= 2 * MOST_NEWS and len(self.news) % MOST_NEWS == 0:
            older, last = self.news[:-MOST_NEWS], self.news[-MOST_NEWS:]
            self.news = [each for each in older if self._stands_by(each)] + last

    def _stands_by(self, told: Decided | Over) -> bool:
        """It reports an entry that is in force, so the client must receive it."""
        return isinstance(told, Decided) and any(s.sequence in self.names for s in told.added)

    def retold(self) -> list[Decided | Over]:
        """The notifications to repeat, without entries that have ended since."""
        return [
            replace(told, added=tuple(s for s in told.added if s.sequence in self.names))
            if isinstance(told, Decided) and told.added
            else told
            for told in self.news
        ]

    def copied(self) -> Session:
        """A session with the same content, which shares nothing that can change."""
        return replace(
            self,
            unanswered=dict(self.unanswered),
            failures=dict(self.failures),
            cursors=dict(self.cursors),
            done={each: dict(ticks) for each, ticks in self.done.items()},
            names=dict(self.names),
            since={each: dict(ticks) for each, ticks in self.since.items()},
            news=list(self.news),
        )

    def grant(self) -> int:
        self.granted += 1
        return GRANTED + self.granted


class MovingSession(Struct, array_like=True, frozen=True):
    """A session that moves to another broker. Deadlines stay, like the operations that they are
    for: an operation waits where it was requested."""

    session: Session
    sent_before: dict[int, int] = {}


class SessionsImage(Struct, tag="sessions", array_like=True, frozen=True):
    rows: tuple[Session, ...]


class DeadlinesImage(Struct, tag="deadlines", array_like=True, frozen=True):
    rows: tuple[tuple[OpId, float, float], ...]
