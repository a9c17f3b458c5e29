"""Opening: where the stream ends and who has published what, by reading as little as possible.

Every segment begins with a checkpoint. So only the last segment is read; of the others, only
their first records.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

from motet.errors import LogCorrupted, StorageError, WrittenByAnotherVersion
from motet.runtime.log import Extent, Log, Record
from motet.runtime.log.folder import WAY_OUT
from motet.runtime.pubend.parts import Live, Part
from motet.runtime.pubend.records import (
    CHECKPOINT,
    DECODERS,
    RUN,
    TICKED,
    Checkpoint,
    first_tick_of,
)
from motet.runtime.pubend.shelf import Shelf
from motet.runtime.pubend.standing import Standing


class SegmentedLog(Log, Protocol):
    """What a pubend needs of the log below it."""

    @property
    def extents(self) -> tuple[Extent, ...]: ...

    def roll(self) -> None: ...


class Opened(NamedTuple):
    standing: Standing
    parts: tuple[Part, ...]
    begins_segment: bool
    """The last segment is empty: it lacks its checkpoint."""


def decoded(record: Record, where: object) -> Any:
    """What a record says."""
    decode = DECODERS.get(record.kind)
    if decode is None:
        raise WrittenByAnotherVersion(
            f"{where}: record {record.sequence} is of kind {record.kind}, which this release does "
            f"not know; start the release that wrote it"
        )
    try:
        return decode(record.payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogCorrupted(
            f"{where}: record {record.sequence} is whole, but cannot be read: {error}; {WAY_OUT}"
        ) from None


class Opening:
    def __init__(
        self,
        log: Log,
        extents: tuple[Extent, ...],
        shelf: Shelf,
        pubend: str,
        begin_behind: int = 0,
    ) -> None:
        self._log = log
        self._extents = extents
        self._shelf = shelf
        self._pubend = pubend
        self._begin_behind = begin_behind
        """What a log that is new takes for lost."""

    def open(self, now_s: float) -> Opened:
        sealed = self._shelf.sealed
        done = self._shelf.last_sequence
        extents = [each for each in self._extents if each.last > done or each.first > done]
        found = [self._checkpoint_of(each) for each in extents]
        standing = Standing(self._pubend)
        parts: list[Part] = list(sealed)
        for at, (extent, checkpoint) in enumerate(zip(extents, found, strict=True)):
            if checkpoint is None:
                continue
            self._check_identity(extent, checkpoint)
            live = Live(extent.first, checkpoint.last_tick, checkpoint.began_s, checkpoint.last_cut)
            after = found[at + 1] if at + 1 < len(found) else None
            if after is None:
                standing.apply(CHECKPOINT, checkpoint)
                self._read(extent, live, standing)
            else:
                live.events = after.events - checkpoint.events
                live.size_bytes = after.size_bytes - checkpoint.size_bytes
            parts.append(live)
        begins_segment = found[-1] is None
        if begins_segment:
            if standing.last_tick == 0 and sealed:
                raise LogCorrupted(f"{extents[-1].path} lacks its first record; {WAY_OUT}")
            if standing.last_tick == 0:
                standing.last_tick = standing.lost_upto = self._begin_behind
                standing.destroyed_upto = self._begin_behind
            parts.append(Live(extents[-1].first, standing.last_tick, now_s, standing.last_cut))
        return Opened(standing, tuple(parts), begins_segment)

    def _checkpoint_of(self, extent: Extent) -> Checkpoint | None:
        """The first record of a segment; None if there is none yet."""
        if extent.last < extent.first:
            return None
        (first,) = self._log.read(extent.first, extent.first)
        if first.kind != CHECKPOINT:
            raise LogCorrupted(f"{extent.path} does not begin with a checkpoint; {WAY_OUT}")
        checkpoint: Checkpoint = decoded(first, extent.path)
        return checkpoint

    def _check_identity(self, extent: Extent, checkpoint: Checkpoint) -> None:
        if checkpoint.pubend != self._pubend:
            raise StorageError(
                f"{extent.path} is of pubend {checkpoint.pubend}, not of {self._pubend}; name the "
                f"folder of the right one"
            )

    def _read(self, extent: Extent, live: Live, standing: Standing) -> None:
        """Everything behind the checkpoint."""
        for record in self._log.read(extent.first + 1, extent.last):
            content = decoded(record, extent.path)
            size = len(record.payload)
            first_tick = standing.last_tick
            if record.kind in TICKED:
                first_tick = first_tick_of(content)
                if first_tick <= standing.last_tick:
                    raise LogCorrupted(
                        f"{extent.path}: record {record.sequence} has tick {first_tick}, which is "
                        f"not behind {standing.last_tick}; {WAY_OUT}"
                    )
            events = content.count if record.kind == RUN else 0
            live.passed(record.sequence, first_tick, events, size)
            standing.apply(record.kind, content)
            standing.size_bytes += size
