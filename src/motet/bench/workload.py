"""Seeded workloads for matching: filters and events over one schema, as alike as each seed.

Twenty attributes of all kinds: whole numbers, fractions, words from a vocabulary, timestamps. A
filter has 2 to 5 predicates (3.4 on average), as wide as it takes for the wanted share of events
to match; values are uniform, so that the share holds for every filter alike.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from motet.model import Filter, Value, attr
from motet.model.filters import EVERYTHING

ATTRIBUTES: Final = 20
PREDICATES: Final = (2, 3, 3, 4, 4, 4, 4, 3, 2, 5)
"""Numbers of predicates, equally likely; 3.4 on average."""

_WHOLE: Final = 1_000_000
_WORDS: Final = tuple(f"{first}{second}" for first in "abcd" for second in "klmn")
_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_YEAR_S: Final = 365 * 86_400

_Predicate = Callable[[Random, str, float], Filter]
_Draw = Callable[[Random], Value]


def _whole_between(random: Random, name: str, share: float) -> Filter:
    low = random.randrange(int(_WHOLE * (1 - share)) + 1)
    return attr(name).between(low, low + int(_WHOLE * share))


def _fraction_between(random: Random, name: str, share: float) -> Filter:
    low = random.random() * (1 - share)
    return attr(name).between(low, low + share)


def _word_in(random: Random, name: str, share: float) -> Filter:
    words = random.sample(_WORDS, max(1, round(share * len(_WORDS))))
    return attr(name) == words[0] if len(words) == 1 else attr(name).isin(words)


def _time_between(random: Random, name: str, share: float) -> Filter:
    low = _START + timedelta(seconds=random.random() * _YEAR_S * (1 - share))
    return attr(name).between(low, low + timedelta(seconds=_YEAR_S * share))


_KINDS: Final[tuple[tuple[_Predicate, _Draw], ...]] = (
    (_whole_between, lambda random: random.randrange(_WHOLE)),
    (_fraction_between, lambda random: random.random()),
    (_word_in, lambda random: random.choice(_WORDS)),
    (_fraction_between, lambda random: random.random()),
    (_time_between, lambda random: _START + timedelta(seconds=random.random() * _YEAR_S)),
)
_SCHEMA: Final = tuple((f"attribute_{i}", *_KINDS[i % len(_KINDS)]) for i in range(ATTRIBUTES))


def filters(count: int, share: float, seed: int = 1) -> list[Filter]:
    """Filters of which each matches about this share of `events`."""
    random = Random(seed)
    made = []
    for _ in range(count):
        size = random.choice(PREDICATES)
        whole = EVERYTHING
        for name, predicate, _ in random.sample(_SCHEMA, size):
            whole &= predicate(random, name, share ** (1 / size))
        made.append(whole)
    return made


def events(count: int, seed: int = 2) -> list[dict[str, Value]]:
    """Attributes of events that have every attribute of the schema."""
    random = Random(seed)
    return [{name: draw(random) for name, _, draw in _SCHEMA} for _ in range(count)]


def topics(count: int, seed: int = 3) -> list[Filter]:
    """Filters as topic-based systems have them: one value of one attribute, and a bound."""
    random = Random(seed)
    return [
        (attr("topic") == f"sensors/{random.randrange(count)}") & (attr("level") > random.random())
        for _ in range(count)
    ]
