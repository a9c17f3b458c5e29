"""Which topics are ordered with which: the streams noted at a site, and the pairs they make.

A pair of topics is ordered at the higher of their two sites. `causal`: one stream has both.
`pairs`: two streams have both, and streams are noted with all topics that they ever had.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from motet.errors import InvariantError
from motet.protocol.sequencing.messages import PAIRS

Ordered = dict[int, None]
"""A set of topics that keeps its order."""


class Groups:
    def __init__(self, position: int, count: int, mode: str) -> None:
        self.noted: dict[str, tuple[int, ...]] = {}
        """Streams that have a topic that lives here, with all their topics."""
        self.partners: dict[int, Ordered] = {}
        """By topic: the topics whose pair with it is ordered here."""
        self.fresh: dict[int, Ordered] = {}
        """Those that became partners since the topic passed."""
        self.top: dict[int, int] = {}
        """By topic that lives here: the highest site of its group, if that is not this one."""
        self._above: dict[int, dict[int, int]] = {}
        """By topic that lives here: the number of topics of its group, by higher site."""
        self._shared: dict[int, dict[int, int]] = {}
        """By topic that lives here, and other topic: the number of streams that have both."""
        self._position: Final = position
        self._count: Final = count
        self._threshold: Final = 2 if mode == PAIRS else 1

    def note(self, stream: str, topics: Iterable[int]) -> None:
        """The stream has these topics from now on; none: it is forgotten."""
        old = self.noted.get(stream, ())
        new = tuple(topics)
        if not any(self.is_own(topic) for topic in new):
            new = ()
        if not new:
            self.noted.pop(stream, None)
        else:
            self.noted[stream] = new
        for topic, other in self._more(old, new):
            self._unshare(topic, other)
        for topic, other in self._more(new, old):
            self._share(topic, other)

    def is_own(self, topic: int) -> bool:
        return topic % self._count == self._position

    def own_topics(self, stream: str) -> list[int]:
        return [topic for topic in self.noted.get(stream, ()) if self.is_own(topic)]

    def _more(self, these: tuple[int, ...], those: tuple[int, ...]) -> Iterable[tuple[int, int]]:
        """The pairs of these topics that are none of those; the first one lives here."""
        before = set(those)
        added = [topic for topic in these if topic not in before]
        for topic in these:
            if self.is_own(topic):
                for other in added if topic in before else these:
                    if other != topic:
                        yield topic, other

    def _share(self, topic: int, other: int) -> None:
        shared = self._shared.setdefault(topic, {})
        shared[other] = count = shared.get(other, 0) + 1
        if count == self._threshold:
            site = other % self._count
            if site > self._position:
                above = self._above.setdefault(topic, {})
                above[site] = above.get(site, 0) + 1
                self.top[topic] = max(above)
                return
            self._begin(topic, other)
            if site < self._position:
                self._begin(other, topic)

    def _begin(self, topic: int, other: int) -> None:
        self.partners.setdefault(topic, {})[other] = None
        self.fresh.setdefault(topic, {})[other] = None

    def _unshare(self, topic: int, other: int) -> None:
        shared = self._shared[topic]
        count = shared[other]
        if count > 1:
            shared[other] = count - 1
        else:
            _remove(self._shared, topic, other)
        if count == self._threshold:
            site = other % self._count
            if site > self._position:
                above = self._above[topic]
                above[site] -= 1
                if not above[site]:
                    _remove(self._above, topic, site)
                    self._lower(topic)
                return
            self._end(topic, other)
            if site < self._position:
                self._end(other, topic)

    def _lower(self, topic: int) -> None:
        if topic in self._above:
            self.top[topic] = max(self._above[topic])
        else:
            del self.top[topic]

    def _end(self, topic: int, other: int) -> None:
        _remove(self.partners, topic, other)
        if other in self.fresh.get(topic, ()):
            _remove(self.fresh, topic, other)

    # ── image ────────────────────────────────────────────────────────────────────────────

    def restore_streams(self, rows: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        for stream, topics in rows:
            self.note(stream, topics)

    def restore_partners(
        self, rows: Iterable[tuple[int, tuple[int, ...], tuple[int, ...]]]
    ) -> None:
        """The same partners as their streams give, but in the order in which they came."""
        for topic, partners, fresh in rows:
            self.partners[topic] = dict.fromkeys(partners)
            self.fresh.pop(topic, None)
            if fresh:
                self.fresh[topic] = dict.fromkeys(fresh)

    def validate(self) -> None:
        again = Groups(self._position, self._count, PAIRS if self._threshold == 2 else "")
        again.restore_streams(self.noted.items())
        if again.partners != self.partners or again.top != self.top:
            raise InvariantError("the partners of topics are not those that their streams give")
        for topic, fresh in self.fresh.items():
            if not fresh or not fresh.keys() <= self.partners.get(topic, {}).keys():
                raise InvariantError(f"topic {topic} has a new partner that is none")


def _remove(
    table: dict[int, dict[int, None]] | dict[int, dict[int, int]], key: int, item: int
) -> None:
    inner = table[key]
    del inner[item]
    if not inner:
        del table[key]
