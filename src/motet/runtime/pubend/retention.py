"""How long a pubend keeps its stream."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from motet.runtime.pubend.state import Part

DAY_S: Final = 86_400.0


class Retention(Struct, frozen=True, kw_only=True):
    """Acknowledged events are removed. Events that are still owed are removed only by age or size,
    and reported as lost. Whole parts are removed, oldest first."""

    keep_s: float = 0.0
    """How long to keep even acknowledged events, for late readers."""
    max_age_s: float = 7 * DAY_S
    max_bytes: int = 8 << 30
    max_share: float = 0.5
    """The maximum share of its disk that the log may use, whatever `max_bytes` says."""
    min_free_share: float = 0.1
    """If less of the disk is free, for whatever reason, acknowledged events are removed at once."""
    cursor_age_s: float = 7 * DAY_S
    """A named cursor that was not set for this long is abandoned."""
    segment_age_s: float = 3600.0
    """A new segment begins at this age, however little the last one holds: events can be removed
    only from finished segments."""


class Disk(NamedTuple):
    """The disk that a log is on."""

    total_bytes: int
    free_bytes: int

    @staticmethod
    def of(folder: Path) -> Disk:
        usage = shutil.disk_usage(folder)
        return Disk(usage.total, usage.free)


class Trimmed(Struct, frozen=True):
    """The result of a trim."""

    floor: int
    """Ticks up to this one are no longer kept."""
    events: int = 0
    lost_events: int = 0
    """Events in parts that were still owed in part: an upper bound of the loss."""
    expired: tuple[str, ...] = ()
    """The cursors that were abandoned."""


class Gone(NamedTuple):
    """How many of the oldest parts may be removed, and their events."""

    parts: int = 0
    events: int = 0
    lost: int = 0


def letting_go(
    parts: Sequence[Part], keep: Retention, now_s: float, owed_behind: int, disk: Disk | None
) -> Gone:
    """The parts to remove, if nothing up to tick `owed_behind` is owed. The last one stays."""
    size, most, lacking = sum(part.size_bytes for part in parts), keep.max_bytes, 0
    if disk is not None:
        most = min(most, int(disk.total_bytes * keep.max_share))
        lacking = int(disk.total_bytes * keep.min_free_share) - disk.free_bytes
    gone = Gone()
    for part, ended in pairwise(parts):
        age_s = now_s - ended.began_s
        is_owed = ended.floor > owed_behind
        is_due = not is_owed and (age_s >= keep.keep_s or lacking > 0)
        if not is_due and age_s <= keep.max_age_s and size <= most:
            break
        size -= part.size_bytes
        lacking -= part.size_bytes
        lost = part.events if is_owed else 0
        gone = Gone(gone.parts + 1, gone.events + part.events, gone.lost + lost)
    return gone
