"""Names: of hops, operations, sessions and attributes, and the numbers of events.

An epoch names a session, in an order that all brokers agree on. `B2-7.31` is session 31 of broker
B2 in its life 7. The number is a Lamport clock: it is higher than that of every session, of any
client, that its broker had heard of. So a session opened with knowledge of another one has the
higher epoch; of two concurrent ones, the order selects the same one everywhere. The life separates
the epochs that one broker issued before and after it lost its state.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import Final, NamedTuple, TypeGuard

from motet.model.limits import MAX_NAME_CHARS


class _KindAndName(NamedTuple):
    # Separate from `Hop`, because a NamedTuple itself cannot store cached values.
    kind: str
    name: str


class Hop(_KindAndName):
    """The next or previous stop of a message at a broker: a neighbour, or a local client."""

    @staticmethod
    @lru_cache(maxsize=4096)
    def broker(name: str) -> Hop:
        return Hop("broker", name)

    @staticmethod
    @lru_cache(maxsize=4096)
    def client(name: str) -> Hop:
        return Hop("client", name)

    @cached_property
    def is_broker(self) -> bool:
        # Brokers call this for every message, on the same few hops.
        return self.kind == "broker"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class OpId(NamedTuple):
    """One operation of one session: unique across the overlay and across restarts.

    `epoch` is issued by the broker that opened the session ("B1-7.31") and never reused, so a
    script that restarts with the same client id and counts from 1 collides with no earlier run.
    """

    client: str
    epoch: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.epoch}/{self.sequence}"


# ── attributes ───────────────────────────────────────────────────────────────────────────

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")


def is_name(name: object) -> TypeGuard[str]:
    """Whether this may name an attribute: ASCII letters, digits, `_` and `.`, no digit first."""
    if type(name) is not str or len(name) > MAX_NAME_CHARS or not name.isascii():
        return False
    return name.isidentifier() or _NAME.match(name) is not None


# ── epochs ───────────────────────────────────────────────────────────────────────────────

MOST_DIGITS: Final = 18


def make_epoch(broker: str, life: int, number: int) -> str:
    return f"{broker}-{life}.{number}"


def issuer_of(epoch: str) -> str:
    """The broker that opened the session. The client routing table knows its current home."""
    return epoch.rpartition("-")[0]


def life_of(epoch: str) -> int:
    """0 if this is not an epoch, as with `number_of`."""
    return _order(epoch)[2]


def number_of(epoch: str) -> int:
    """0 if this is not an epoch: the text may come from any peer."""
    return _order(epoch)[0]


def is_newer(epoch: str, than: str) -> bool:
    return epoch != than and _order(epoch) > _order(than)


def newest(epochs: tuple[str, ...]) -> str:
    return epochs[0] if len(epochs) == 1 else max(epochs, key=_order)


def _order(epoch: str) -> tuple[int, str, int]:
    broker, _, rest = epoch.rpartition("-")
    life, _, number = rest.partition(".")
    return _counted(number), broker, _counted(life)


def _counted(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    return int(text) if is_number else 0


# ── ticks ────────────────────────────────────────────────────────────────────────────────
# The numbers that a pubend gives to its events. They only increase.

TICKS_PER_S: Final = 1_000_000
"""Ticks are microseconds of the brokers' clocks: roughly when an event was published."""
LAST_TICK: Final = (1 << 62) - 1
"""The highest tick of any event."""
NO_LIMIT: Final = 2**63 - 1
"""No limit on the number of rows."""
