"""Durable state of the sinks of one broker."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from motet.model import OpId
from motet.protocol.sinks.messages import StagedPart


class Batch(NamedTuple):
    """What is staged, and discarded, together."""

    sink: str
    job: str
    epoch: int


class Sink(Struct):
    query: str = ""
    """The query that writes into the sink; empty: none yet."""
    epoch: int = -1
    """The last epoch of that query that was committed."""
    former: list[str] = field(default_factory=list)
    """Earlier queries of a sink that was taken over; they may not write any more."""
    keys: dict[str, str] = field(default_factory=dict)
    """Keys of committed batch writes, with their transactions; oldest first."""
    jobs: dict[str, str] = field(default_factory=dict)
    """The same for writes without a key, by job: they must not displace keys."""


class StagedBlock(Struct):
    """A committed batch that may not be completely in the log yet."""

    tx: str
    client: str
    pubend: str
    job: str
    epoch: int
    tick: int
    """The tick of its cut; its rows follow."""
    rows: int
    parts: tuple[StagedPart, ...]
    waiting: list[OpId] = field(default_factory=list)
    """Requests to be answered when the log has the whole batch."""

    @property
    def last_tick(self) -> int:
        return self.tick + self.rows

    @property
    def batch(self) -> Batch:
        return Batch(self.client, self.job, self.epoch)


class SinkState(Struct):
    sinks: dict[str, Sink] = field(default_factory=dict)
    blocks: dict[str, StagedBlock] = field(default_factory=dict)
    """By transaction."""

    def __bool__(self) -> bool:
        return bool(self.sinks or self.blocks)


class SinksImage(Struct, tag="sinks", array_like=True, frozen=True):
    state: SinkState
