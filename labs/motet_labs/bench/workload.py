"""What benchmarks publish and subscribe to; the same for the same seed.

Orders of a trading desk: six attributes and a payload, 142 bytes encoded. A subscription wants one
symbol of 25, prices above one bound and quantities below another: three predicates, of which an
order meets all with probability 1/25 · 1/2 · 1/2 = 1 %.

Readings of sensors, of 142 bytes as in the experiments of paper 5, in runs of one publisher.

Filters and events over a schema of twenty attributes of all types: integers, floats, words from a
vocabulary, timestamps. A filter has 2 to 5 predicates (3.4 on average), wide enough for the wanted
share of events to match; values are uniform, so the share holds for every filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

from msgspec import Raw

from motet.model import Event, Filter, Value, attr
from motet.model.filters import EVERYTHING

EVENT_BYTES: Final = 142

# ── orders ───────────────────────────────────────────────────────────────────────────────

SYMBOLS: Final = tuple(f"SYM{i:02}" for i in range(25))
SPACE: Final = "desk = 'equities'"
"""The space that publishers advertise."""
PAYLOAD: Final = b"limit order, good till cancelled, account 000184, clearing member 4"
HIGHEST_PRICE: Final = 1000.0
HIGHEST_QUANTITY: Final = 10_000


def orders(count: int, seed: int = 1) -> list[dict[str, Value]]:
    random = Random(seed)
    return [
        {
            "desk": "equities",
            "symbol": random.choice(SYMBOLS),
            "price": round(random.uniform(0, HIGHEST_PRICE), 2),
            "quantity": random.randint(200, HIGHEST_QUANTITY),
            "buy": number % 2 == 0,
            "number": 1_000_000 + number,
        }
        for number in range(count)
    ]


def subscriptions(count: int, seed: int = 2) -> list[Filter]:
    """On average 1 % of them match an order."""
    random = Random(seed)
    return [
        (attr("symbol") == random.choice(SYMBOLS))
        & (attr("price") > round(random.uniform(0, HIGHEST_PRICE), 2))
        & (attr("quantity") < random.randint(200, HIGHEST_QUANTITY))
        for _ in range(count)
    ]


# ── readings of sensors ──────────────────────────────────────────────────────────────────

RUN_EVENTS: Final = 64
PUBLISHERS: Final = tuple(f"publisher-{number}" for number in range(16))
"""The publishers of runs, in turn."""
SHARE: Final = 100
"""One event in this many has `rare` at zero."""
RARE: Final = "rare = 0"


def runs() -> Iterator[list[Raw]]:
    """An endless sequence of runs of encoded events."""
    random = Random(7)
    words = [f"sensor-{number:03d}" for number in range(200)]
    step = 0
    while True:
        bodies = []
        for _ in range(RUN_EVENTS):
            step += 1
            attributes: dict[str, Value] = {
                "sensor": random.choice(words),
                "step": step,
                "level": random.random(),
                "rare": random.randrange(SHARE),
            }
            bare = len(Event(attributes, b"").encode())
            payload = random.randbytes(max(EVENT_BYTES - bare, 0))
            bodies.append(Raw(Event(attributes, payload).encode()))
        yield bodies


# ── a schema of all types ────────────────────────────────────────────────────────────────

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
    """Filters that each match about this share of `events`."""
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
