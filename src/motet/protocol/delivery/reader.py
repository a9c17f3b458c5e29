"""One client in all pubends, and the doors that only some clients need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from motet.model import OpId
from motet.protocol.delivery.merge import Blocked, Merge
from motet.protocol.delivery.position import Position
from motet.protocol.delivery.state import Effects
from motet.protocol.delivery.together import Together


class Reader:
    """One client, in all pubends."""

    __slots__ = (
        "awaited",
        "blocked",
        "cursors",
        "durable",
        "hold",
        "kept",
        "merge",
        "passed",
        "positions",
        "present",
        "resumes",
        "together",
    )

    def __init__(self) -> None:
        self.present = False
        self.resumes = False
        """The same process as before: it has events that it is perhaps not done with."""
        self.durable = False
        self.hold = False
        """Nothing of a pubend that it has not begun to read is given before it is ready."""
        self.kept: Mapping[str, int] = {}
        """By pubend, how far it had come when that was last made durable."""
        self.cursors: Mapping[str, int] = {}
        """What the client said it had when it came; and had processed, unless it resumes."""
        self.passed: dict[str, int] = {}
        """By pubend where it has nothing any more: how far it had come since it is here."""
        self.positions: dict[str, Position] = {}
        self.merge: Merge | None = None
        """For a client that wants total order."""
        self.together: Together | None = None
        """For any other that is here."""
        self.awaited: dict[str, None] = {}
        """Pubends at which a subscription of it will start, or start again."""
        self.blocked: Blocked | None = None

    def expected(self) -> list[str]:
        """Pubends that its merge will have, and has not."""
        placed = {p: each.present for p, each in self.positions.items()}
        told = [p for p, each in self.positions.items() if each.told and not each.present]
        return [*(p for p in self.awaited if not placed.get(p)), *told]


Reach = Callable[[OpId, str], int | None]
"""Above which tick of a pubend a subscription wants what is older than itself, if at all."""


class Durables(Protocol):
    """The doors for what outlives a connection, or reaches back before one."""

    reach: Reach

    def recall(self, client: str, cursors: Mapping[str, int]) -> None:
        """After a restart, before `start`: how far a durable client had come."""

    def done(self, client: str, subscription: int, pubend: str, tick: int) -> None:
        """One subscription of a client is further than the client is."""

    def ready(self, client: str, now: float, out: Effects) -> None:
        """A client that held has made its subscriptions, and reads."""

    def begun(self, client: str) -> dict[str, int]:
        """By pubend that a client has begun to read: where it stands, or stood before its last
        subscription there was over. If it is not here, it is done with everything up to there."""
        ...


class Merging(Protocol):
    """The doors for clients in total order."""

    def awaits(self, client: str, pubends: Iterable[str], now: float, out: Effects) -> None:
        """These are all pubends that a client will start to merge: it is given nothing more until
        `start` tells where. To be said before anybody is told that they may publish."""

    def blocked(self) -> dict[str, tuple[int, float]]:
        """By pubend that clients wait for: how many of them, and the first one since when."""
        ...
