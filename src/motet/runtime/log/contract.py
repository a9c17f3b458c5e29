"""What every log offers, on disk or simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

USER_KINDS = 16
"""Kinds below are free for those who append; the others are the log's own."""

MAX_APPEND_BYTES = 1 << 30
"""One call of `append` takes at most this much, in at most a quarter as many records."""


class Record(NamedTuple):
    sequence: int
    kind: int
    payload: bytes


class Extent(NamedTuple):
    """A file of a log, and the records in it."""

    path: Path
    first: int
    last: int


class Durability(Enum):
    """When a record counts as durable. The name says what is given up."""

    FSYNC = "fsync"
    """Once it is synced: survives a power failure."""

    MAY_LOSE_A_SECOND = "may-lose-a-second"
    """Once it is written, and synced within a second: survives the end of the process however
    it comes, but a power failure takes up to a second of what was acknowledged."""


class Log(Protocol):
    @property
    def first(self) -> int:
        """The sequence of the oldest record kept; `appended + 1` if there is none."""

    @property
    def appended(self) -> int:
        """The sequence of the last record taken; 0 if there never was one. Records count from 1."""

    @property
    def durable(self) -> int:
        """The sequence of the last record that survives a crash; never more than `appended`."""

    def append(self, payloads: Sequence[bytes], kind: int = 0) -> int:
        """Take records, in order; the position at which all of them are durable."""

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Call `durable` on the event loop whenever `durable` grows outside of `append`. Call
        `failed` once if it never will again: a failed sync is not retried."""

    def read(self, first: int, last: int | None = None) -> Iterator[Record]:
        """The durable records from `first` to `last`, both included, verified while reading.
        `LogTrimmed` if `first` was trimmed."""

    def trim(self, upto: int) -> None:
        """Records up to `upto` may go, soon. More may be kept; the newest segment always is."""

    async def close(self) -> None:
        """Make durable what was appended, and let go."""

    async def abandon(self) -> None:
        """Let go, and claim nothing: whoever opens the log next finds it as after a crash."""
