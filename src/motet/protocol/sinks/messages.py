"""Frames between a task that stages rows and a broker.

Like the frames of readers they begin with the protocol version, because no hello precedes them.
Each request gets one reply: its answer or `Refused`.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct

from motet.model import Filter
from motet.protocol.traits import READER, SMALL_BYTES, frame

MOST_ROWS: Final = 4096
MOST_BYTES: Final = 1 << 20
"""Limit of a piece; a single row may be larger."""
MAX_STAGING_CHARS: Final = 256


class Attempt(Struct, array_like=True, frozen=True):
    """One attempt to write one part of a batch: sink, job, epoch of the batch, partition, and name
    of the attempt. `job` is the id of a query or of a batch write; a batch write has epoch 0. The
    name of an attempt is never reused."""

    sink: str
    job: str
    epoch: int
    partition: int
    name: str


@frame(senders=READER, versioned=True)
class RowsRequest(Struct, tag="rows?", array_like=True, frozen=True):
    """Stage piece `index` (from 0) of an attempt: encoded events, which must lie inside
    `advertised`."""

    version: int
    number: int
    attempt: Attempt
    index: int
    advertised: Filter
    bodies: list[Raw]


@frame(senders=READER, versioned=True, most_bytes=SMALL_BYTES)
class SealRequest(Struct, tag="seal?", array_like=True, frozen=True):
    """The attempt is complete with this number of pieces: make them durable."""

    version: int
    number: int
    attempt: Attempt
    pieces: int


@frame(senders=READER, versioned=True, most_bytes=SMALL_BYTES)
class DropRequest(Struct, tag="drop?", array_like=True, frozen=True):
    """A batch will not be committed: discard what is staged for it. No effect if it is
    committed."""

    version: int
    number: int
    sink: str
    job: str
    epoch: int


@frame(soft=True)
class RowsStaged(Struct, tag="rows", array_like=True, frozen=True):
    number: int


class StagedPart(Struct, array_like=True, frozen=True):
    """A finished attempt, and the contents that it must have when it is committed."""

    partition: int
    name: str
    rows: int
    size_bytes: int
    checksum: int


@frame(soft=True)
class Sealed(Struct, tag="sealed", array_like=True, frozen=True):
    """The attempt is durable."""

    number: int
    part: StagedPart


@frame(soft=True)
class Dropped(Struct, tag="dropped", array_like=True, frozen=True):
    number: int


StagingRequest = RowsRequest | SealRequest | DropRequest
StagingAnswer = RowsStaged | Sealed | Dropped
StagingFrame = StagingRequest | StagingAnswer
