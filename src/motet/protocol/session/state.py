"""Durable state of sessions."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import replace

from motet.protocol.session.messages import Decided, Done, Failed, Over

MOST_NEWS = 256
GRANTED = 1 << 40
"""What a broker puts in force for a client, in a plan, it numbers from here on: no client has made
so many requests."""


class Session(Struct):
    """One epoch of one client. `requests` is the sequence of the last request received."""

    client: str
    epoch: str
    requests: int = 0
    unanswered: dict[int, None] = field(default_factory=dict)
    failures: dict[int, Done | Failed] = field(default_factory=dict)
    """Answers that were not just `Done`, kept as long as the client may still ask for them."""
    instance: str = ""
    """Which of the processes that use this id has opened or resumed it."""
    keep_s: float = 0.0
    """A durable session outlives its connection by so much; 0: the broker's lease counts."""
    left_at: float | None = None
    """When its last connection went; None while there is one, as far as the journal knows."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Of a durable session, by pubend: its client was done with everything up to this tick when
    it was last written down."""
    done: dict[int, dict[str, int]] = field(default_factory=dict)
    """The same for single subscriptions that were further when their process left, by request."""
    names: dict[int, str] = field(default_factory=dict)
    """What its client calls the advertisements and subscriptions in force, by request."""
    since: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of subscriptions that reach into the past, by request: from where on, by pubend."""
    total_order: bool = False
    """It is given the events of all pubends in one order."""
    advertised: bool = False
    """It may have published something."""
    taken: int = 0
    """The last publication that had come when its last connection went."""
    published: int = 0
    """Publications up to this one were in a log that is destroyed: no number of them returns."""
    uncounted: bool = False
    """Nobody but its client knows how many of its publications were in a destroyed log."""
    news: list[Decided | Over] = field(default_factory=list)
    """The last words about transactions, and all that tell what plans have put in force: told again
    to who comes back, since they may have been on their way when the connection broke. Who knows
    them already is not harmed."""
    willing: bool = False
    """Its broker may do its part of plans."""
    granted: int = 0
    """How much its broker has put in force for it."""

    @property
    def durable(self) -> bool:
        return self.keep_s > 0

    def expires_at(self, now: float, lease_s: float) -> float:
        """When a session ends whose client has just gone, or whose broker has just come back:
        that counts as a sign of life for a lease only, or it would never end."""
        if not self.durable:
            return now + lease_s
        left_at = now if self.left_at is None else self.left_at
        return max(left_at + self.keep_s, now + min(lease_s, self.keep_s))

    def hear(self, told: Decided | Over) -> None:
        self.news.append(told)
        if len(self.news) >= 2 * MOST_NEWS and len(self.news) % MOST_NEWS == 0:
            older, last = self.news[:-MOST_NEWS], self.news[-MOST_NEWS:]
            self.news = [each for each in older if self._stands_by(each)] + last

    def _stands_by(self, told: Decided | Over) -> bool:
        """It tells of something that is in force: who has not heard of that must hear it."""
        return isinstance(told, Decided) and any(s.sequence in self.names for s in told.added)

    def retold(self) -> list[Decided | Over]:
        """The same again, without what has ended since."""
        return [
            replace(told, added=tuple(s for s in told.added if s.sequence in self.names))
            if isinstance(told, Decided) and told.added
            else told
            for told in self.news
        ]

    def grant(self) -> int:
        self.granted += 1
        return GRANTED + self.granted
