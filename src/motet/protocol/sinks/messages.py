"""Frames between a task that stages rows and a broker.

Like those of readers they begin with the version of the protocol, because no hello precedes them;
each is answered once, by its answer or by `Refused`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct

from motet.model import Filter

MOST_ROWS: Final = 4096
MOST_BYTES: Final = 1 << 20
"""Of a piece; a single row may be larger."""
MAX_STAGING_CHARS: Final = 256


class Attempt(Struct, array_like=True, frozen=True):
    """Whose rows these are: a sink, the job that writes them, the batch of it, which part of
    the batch, and which attempt at that part. `job` is a query's id, or a batch write's; a batch
    write has epoch 0. An attempt's name is never used again."""

    sink: str
    job: str
    epoch: int
    partition: int
    name: str


class RowsRequest(Struct, tag="rows?", array_like=True, frozen=True):
    """Stage piece `index`, from 0 on, of an attempt: bodies of events, which must lie inside
    `advertised`."""

    version: int
    number: int
    attempt: Attempt
    index: int
    advertised: Filter
    bodies: list[Raw]


class SealRequest(Struct, tag="seal?", array_like=True, frozen=True):
    """An attempt has so many pieces, and no more come: make them durable."""

    version: int
    number: int
    attempt: Attempt
    pieces: int


class DropRequest(Struct, tag="drop?", array_like=True, frozen=True):
    """A batch will not be committed: all that is staged for it may go. Nothing happens if it
    has been."""

    version: int
    number: int
    sink: str
    job: str
    epoch: int


class RowsStaged(Struct, tag="rows", array_like=True, frozen=True):
    number: int


class StagedPart(Struct, array_like=True, frozen=True):
    """A finished attempt: what it must have when it is committed."""

    partition: int
    name: str
    rows: int
    size_bytes: int
    checksum: int


class Sealed(Struct, tag="sealed", array_like=True, frozen=True):
    """It is durable."""

    number: int
    part: StagedPart


class Dropped(Struct, tag="dropped", array_like=True, frozen=True):
    number: int


StagingRequest = RowsRequest | SealRequest | DropRequest
StagingAnswer = RowsStaged | Sealed | Dropped
StagingFrame = StagingRequest | StagingAnswer
