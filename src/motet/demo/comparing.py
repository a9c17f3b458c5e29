"""A plain comparison of what was to be published with what came: no broker, no Spark. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from motet.demo.script import Attributes, Key, Script

Came = tuple[Key, Attributes]


@dataclass(frozen=True)
class Tally:
    """What came of what was owed."""

    owed: int
    delivered: int
    lost: int = 0
    doubled: int = 0
    misrouted: int = 0
    """For a subscription that it does not match, or published by nobody."""
    changed: int = 0
    """With other attributes than those that were published."""
    inverted: int = 0
    """Before an earlier event of its publisher, or in another order than somebody else saw."""
    torn: int = 0
    """Hand-overs, or transactions, of which a part is missing or in the wrong place."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(_fields(self), _fields(other), strict=True)))

    @property
    def is_clean(self) -> bool:
        return not any(_fields(self)[2:])


def _fields(tally: Tally) -> tuple[int, ...]:
    return (tally.owed, tally.delivered, tally.lost, tally.doubled, tally.misrouted,
            tally.changed, tally.inverted, tally.torn)  # fmt: skip


def compare(script: Script, came: Sequence[Came], owed: Collection[Key]) -> Tally:
    """What came for somebody who was owed each of these once, in any order."""
    times = Counter(key for key, _ in came)
    foreign = [key for key, _ in came if key not in script.events or key not in owed]
    changed = sum(key in script.events and script.events[key] != told for key, told in came)
    return Tally(
        owed=len(owed),
        delivered=len(came),
        lost=sum(key not in times for key in owed),
        doubled=sum(count - 1 for count in times.values()),
        misrouted=len(foreign),
        changed=changed,
    )


def compare_handlers(script: Script, stretches: Iterable[tuple[str, Sequence[Came]]]) -> Tally:
    """Each event of a case went to exactly one handler: `stretches` are what each subscription to
    a lot has brought, in order."""
    given = [(lot, came) for lot, came in stretches if came]
    tally = compare(script, [each for _, came in given for each in came], script.lot_of.keys())
    misrouted = sum(script.lot_of.get(key, lot) != lot for lot, came in given for key, _ in came)
    inverted = sum(disordered([key for key, _ in came]) for _, came in given)
    return tally + Tally(0, 0, misrouted=misrouted, inverted=inverted, torn=_interleaved(given))


def _interleaved(given: Iterable[tuple[str, Sequence[Came]]]) -> int:
    """Hand-overs where one side got something of what the other had begun to get. Of a lot and a
    publisher, each stretch is a range of numbers: no two of them may overlap."""
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for lot, came in given:
        numbers: dict[str, list[int]] = defaultdict(list)
        for (publisher, number), _ in came:
            numbers[publisher].append(number)
        for publisher, those in numbers.items():
            ranges[lot, publisher].append((min(those), max(those)))
    wrong = 0
    for found in ranges.values():
        highest = 0
        for first, last in sorted(found):
            wrong += first <= highest
            highest = max(highest, last)
    return wrong


def disordered(keys: Iterable[Key]) -> int:
    """Events that came behind a later one of the same publisher."""
    highest: dict[str, int] = {}
    wrong = 0
    for publisher, number in keys:
        wrong += number < highest.get(publisher, 0)
        highest[publisher] = max(number, highest.get(publisher, 0))
    return wrong


def swapped(one: Sequence[Key], other: Sequence[Key]) -> int:
    """Neighbours in the order of one that the other saw the other way round. If there are none,
    no two common events are in another order."""
    places = {key: at for at, key in enumerate(other)}
    common = [places[key] for key in one if key in places]
    return sum(then < first for first, then in pairwise(common))


def compare_watchers(script: Script, watched: Mapping[str, Sequence[Came]]) -> Tally:
    """Each saw all events of cases once, in the order of publishers, and all in one order."""
    tally = Tally(0, 0)
    orders = [[key for key, _ in came] for came in watched.values()]
    for came, order in zip(watched.values(), orders, strict=True):
        tally += compare(script, came, script.lot_of.keys())
        tally += Tally(0, 0, inverted=disordered(order))
    for first, then in pairwise(orders):
        tally += Tally(0, 0, inverted=swapped(first, then))
    return tally


# ── transactions ─────────────────────────────────────────────────────────────────────────


def compare_blocks(
    seen: Sequence[tuple[str, object]], owed: Mapping[str, Sequence[object]]
) -> Tally:
    """Who listens to transactions must see each that was committed as one block, with all that was
    published in it: `seen` has a transaction and a mark for each event, `owed` the marks of all, by
    transaction and in order."""
    blocks = [
        (tx, [mark for _, mark in events]) for tx, events in groupby(seen, lambda each: each[0])
    ]
    times = Counter(tx for tx, _ in blocks)
    torn = sum(tx in owed and marks != list(owed[tx]) for tx, marks in blocks)
    return Tally(
        owed=len(owed),
        delivered=len(times),
        lost=sum(tx not in times for tx in owed),
        doubled=sum(count - 1 for count in times.values()),
        misrouted=sum(tx not in owed for tx in times),
        torn=torn,
    )
