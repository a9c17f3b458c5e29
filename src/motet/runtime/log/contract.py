"""The interface of every log, on disk or simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

USER_KINDS = 16
"""Kinds below this are free for users of the log; the others are the log's own."""

MAX_APPEND_BYTES = 1 << 30
"""One call of `append` takes at most this many bytes, in at most a quarter as many records."""


class Record(NamedTuple):
    sequence: int
    kind: int
    payload: bytes


class Extent(NamedTuple):
    """A file of a log and the range of its records."""

    path: Path
    first: int
    last: int


class Durability(Enum):
    """When a record counts as durable. The name says what may be lost."""

    FSYNC = "fsync"
    """Durable once synced: survives a power failure."""

    MAY_LOSE_A_SECOND = "may-lose-a-second"
    """Durable once written, and synced within a second: survives any end of the process, but a
    power failure loses up to a second of acknowledged records."""


class Log(Protocol):
    @property
    def first(self) -> int:
        """The sequence of the oldest record kept; `appended + 1` if there is none."""

    @property
    def appended(self) -> int:
        """The sequence of the last record appended; 0 if there never was one. The first is 1."""

    @property
    def durable(self) -> int:
        """The sequence of the last record that survives a crash; never more than `appended`."""

    def append(self, payloads: Sequence[bytes], kind: int = 0) -> int:
        """Append records in order; returns the position at which all of them are durable."""

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Call `durable` on the event loop whenever `durable` grows outside of `append`. Call
        `failed` once if it can never grow again: a failed sync is not retried."""

    def read(self, first: int, last: int | None = None) -> Iterator[Record]:
        """The durable records from `first` to `last`, both included, verified while reading. Raises
        `LogTrimmed` if `first` was trimmed."""

    def trim(self, upto: int) -> None:
        """Records up to `upto` may be removed soon, except those in the newest segment."""

    async def close(self) -> None:
        """Make all appended records durable, and release the log."""

    async def abandon(self) -> None:
        """Release the log without an orderly end: the next `open` finds it as after a crash."""
