"""What was published, who was owed it, who got it.

The account is kept beside the system, not by it: it decides with the filter alone who should
have received an event, the way one broker with all the clients would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from motet.model import Event, Filter, Value


@dataclass(frozen=True)
class Posted:
    publisher: str
    owed: frozenset[str]
    """Subscribers in force then whose filters match."""
    matching: frozenset[str]


@dataclass
class Reader:
    """One subscription and all that it received, in order."""

    name: str
    wanted: Filter
    in_force: bool = True
    received: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Tally:
    published: int
    delivered: int
    lost: int
    doubled: int
    misrouted: int
    disordered: int
    refused: int
    refused_delivered: int


class Account:
    def __init__(self) -> None:
        self._posted: dict[int, Posted] = {}
        self._refused: set[int] = set()
        self._readers: dict[str, Reader] = {}

    def open(self, name: str, wanted: Filter) -> Reader:
        """From now on this subscription is owed what matches."""
        reader = self._readers[name] = Reader(name, wanted)
        return reader

    def close(self, name: str) -> None:
        """The subscription was taken back: it is owed nothing more."""
        self._readers[name].in_force = False

    def next_id(self) -> int:
        return len(self._posted) + len(self._refused) + 1

    def post(self, event: Mapping[str, Value], publisher: str) -> None:
        """About to be published."""
        matching = {r.name for r in self._readers.values() if r.wanted.matches(dict(event))}
        owed = {name for name in matching if self._readers[name].in_force}
        self._posted[_id(event)] = Posted(publisher, frozenset(owed), frozenset(matching))

    def refuse(self, event: Mapping[str, Value]) -> None:
        """Was published and refused: nobody may receive it."""
        self._refused.add(_id(event))

    def outstanding(self) -> dict[str, int]:
        """How many events each subscriber still waits for."""
        waiting: Counter[str] = Counter()
        for name, reader in self._readers.items():
            have = set(reader.received)
            waiting[name] = sum(
                name in posted.owed and number not in have
                for number, posted in self._posted.items()
            )
        return {name: count for name, count in waiting.items() if count}

    def tally(self) -> Tally:
        readers = self._readers.values()
        have = {reader.name: set(reader.received) for reader in readers}
        lost = sum(
            number not in have[name]
            for number, posted in self._posted.items()
            for name in posted.owed
        )
        return Tally(
            published=len(self._posted),
            delivered=sum(len(reader.received) for reader in readers),
            lost=lost,
            doubled=sum(len(r.received) - len(have[r.name]) for r in readers),
            misrouted=sum(self._misrouted(reader) for reader in readers),
            disordered=sum(self._disordered(reader) for reader in readers),
            refused=len(self._refused),
            refused_delivered=sum(len(have[r.name] & self._refused) for r in readers),
        )

    def _misrouted(self, reader: Reader) -> int:
        return sum(
            number not in self._posted or reader.name not in self._posted[number].matching
            for number in reader.received
        )

    def _disordered(self, reader: Reader) -> int:
        """Events that came before an earlier one of the same publisher."""
        highest: dict[str, int] = {}
        wrong = 0
        for number in reader.received:
            if number in self._posted:
                publisher = self._posted[number].publisher
                wrong += number < highest.get(publisher, 0)
                highest[publisher] = max(number, highest.get(publisher, 0))
        return wrong


def _id(event: Mapping[str, Value] | Event) -> int:
    number = event["id"]
    assert isinstance(number, int)
    return number
