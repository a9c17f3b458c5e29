"""What is durable of the sinks of one broker."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from motet.model import OpId
from motet.protocol.sinks.messages import StagedPart


class Batch(NamedTuple):
    """What is staged, and goes, together."""

    sink: str
    job: str
    epoch: int


class Sink(Struct):
    query: str = ""
    """The one that writes into it; empty if none has yet."""
    epoch: int = -1
    """The last one of that query that was committed."""
    former: list[str] = field(default_factory=list)
    """Queries that were taken over from: they come back no more."""
    keys: dict[str, str] = field(default_factory=dict)
    """Keys of batch writes that were committed, with their transactions; oldest first."""
    jobs: dict[str, str] = field(default_factory=dict)
    """The same for those without a key: they go by their job, and must not push out others."""


class StagedBlock(Struct):
    """A batch that is committed, and of which the log has perhaps not everything yet."""

    tx: str
    client: str
    pubend: str
    job: str
    epoch: int
    tick: int
    """Of its cut; its rows follow."""
    rows: int
    parts: tuple[StagedPart, ...]
    waiting: list[OpId] = field(default_factory=list)
    """Requests that are answered when the log has it."""

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
