"""Where a read begins and ends, as people write it.

earliest                      what is kept
latest                        what there is now
2026-11-16T08:00:00+00:00     a time; without a zone it is UTC
{"B1.1": 1793…, "B2.1": …}    the first tick of each pubend; others as with `earliest`
transaction:alice/…/7         that transaction
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final, Literal

from msgspec import Struct

from motet.errors import MisuseError
from motet.model.ticks import LAST_TICK, TICKS_PER_S

TRANSACTION: Final = "transaction:"


class Position(Struct, frozen=True):
    kind: Literal["earliest", "latest", "tick", "ticks", "transaction"]
    tick: int = 0
    """A time is a tick: the same for all pubends."""
    ticks: tuple[tuple[str, int], ...] = ()
    transaction: str = ""


EARLIEST: Final = Position("earliest")
LATEST: Final = Position("latest")


def position_in(name: str, text: str) -> Position:
    word = text.strip()
    if word.lower() == "earliest":
        return EARLIEST
    if word.lower() == "latest":
        return LATEST
    if word.startswith("{"):
        return Position("ticks", ticks=_ticks(name, word))
    if word.startswith(TRANSACTION) and word != TRANSACTION:
        return Position("transaction", transaction=word.removeprefix(TRANSACTION))
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise MisuseError(
            f"{name} is earliest, latest, a time, transaction:ID or ticks by pubend as JSON, "
            f"not {text!r}"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return Position("tick", tick=max(int(time.timestamp() * TICKS_PER_S), 1))


def _ticks(name: str, text: str) -> tuple[tuple[str, int], ...]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise MisuseError(f"{name} is no JSON: {problem}") from None
    for pubend, tick in found.items():
        if type(tick) is not int or not 1 <= tick <= LAST_TICK:
            raise MisuseError(f"{name}: {pubend} has ticks from 1 on, not {tick!r}")
    return tuple(sorted(found.items()))
