"""Names: who, where, and which operation."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Hop(NamedTuple):
    """The next or last stop of a message at one broker: a neighbour, or a client of its own."""

    kind: str
    name: str

    @staticmethod
    @lru_cache(maxsize=4096)
    def broker(name: str) -> Hop:
        return Hop("broker", name)

    @staticmethod
    @lru_cache(maxsize=4096)
    def client(name: str) -> Hop:
        return Hop("client", name)

    @property
    def is_broker(self) -> bool:
        return self.kind == "broker"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class OpId(NamedTuple):
    """One operation of one session: unique across the overlay and across restarts.

    `epoch` is issued by the broker that opened the session ("B1-7") and is never used again,
    so a script that restarts with the same client id and counts from 1 meets no former self.
    """

    client: str
    epoch: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.epoch}/{self.sequence}"
