"""Epochs: the names of sessions, in an order that all brokers agree on.

`B2-7.31` is session 31 of broker B2 in its life 7. The number is a Lamport clock: it lies above
that of every session, of whatever client, that its broker had heard of. So whoever opens a
session knowing of another one has the higher epoch; of two that could not know of each other,
the order picks the same one everywhere. The life keeps apart what one broker issued before and
after it lost its state.
"""

from __future__ import annotations

MOST_DIGITS = 18


def make_epoch(broker: str, life: int, number: int) -> str:
    return f"{broker}-{life}.{number}"


def broker_of(epoch: str) -> str:
    return epoch.rpartition("-")[0]


def life_of(epoch: str) -> int:
    """0 for what is no epoch, as with `number_of`."""
    return _order(epoch)[2]


def number_of(epoch: str) -> int:
    """0 for what is no epoch: anybody may have written it."""
    return _order(epoch)[0]


def is_newer(epoch: str, than: str) -> bool:
    return _order(epoch) > _order(than)


def newest(epochs: tuple[str, ...]) -> str:
    return epochs[0] if len(epochs) == 1 else max(epochs, key=_order)


def _order(epoch: str) -> tuple[int, str, int]:
    broker, _, rest = epoch.rpartition("-")
    life, _, number = rest.partition(".")
    return _counted(number), broker, _counted(life)


def _counted(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    return int(text) if is_number else 0
