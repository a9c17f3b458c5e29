"""How long events are kept, as configured, and the upkeep of their log.

    retention = { history = "1d", age = "7d", size = "10GiB", share = 0.5, free = 0.1 }

in a topology file, for the whole overlay or for one broker, or `--retention history=1d,size=10GiB`.
Decision 22 explains these defaults.

While the broker runs, segments that are no longer needed are removed, and the others are sealed.
Neither blocks the event loop: another process seals, the thread of the log removes files, and a
thread queries the disk.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from motet.errors import MisuseError, StorageError
from motet.runtime.pubend import Disk, PubendLog, Retention, Trimmed
from motet.runtime.pubend.retention import DAY_S

DEFAULT: Final = Retention(keep_s=DAY_S, max_age_s=7 * DAY_S, max_bytes=10 << 30)

_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_WRITTEN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\Z")
LEAST_BYTES: Final = 1 << 20
PARTS: Final = 8
"""Only whole segments are removed, so about this many fit within the smallest bound."""
MOST_SEGMENT_BYTES: Final = 64 << 20
MOST_SEGMENT_S: Final = 3600.0
LEAST_SEGMENT_S: Final = 1.0


def duration_s(written: Any) -> float:
    """`"90s"`, `"15m"`, `"12h"`, `"7d"`; numbers are seconds."""
    if type(written) in (int, float):
        found = float(written)
    else:
        found = _measured(written, _SECONDS, "a time like 90s, 15m, 12h or 7d")
    if not 0 <= found < 1e10:
        raise MisuseError(f"{written!r} is not a time that can be kept to; write 90s, 12h or 7d")
    return found


def size_bytes(written: Any) -> int:
    """`"512MiB"`, `"10GiB"`; numbers are bytes."""
    if type(written) is int:
        found = written
    else:
        found = int(_measured(written, _BYTES, "a size like 512MiB or 10GiB"))
    if not LEAST_BYTES <= found < 1 << 62:
        raise MisuseError(f"{written!r} is too small or too large; write at least 1MiB")
    return found


def share(written: Any) -> float:
    try:
        found = float(written)
    except (TypeError, ValueError):
        found = -1.0
    if isinstance(written, bool) or not 0 <= found <= 1:
        raise MisuseError(f"{written!r} is not a share of the disk; write a number from 0 to 1")
    return found


def _measured(written: Any, units: Mapping[str, float], example: str) -> float:
    match = _WRITTEN.match(written.strip()) if isinstance(written, str) else None
    if match is None or match[2] not in units:
        raise MisuseError(f"{written!r} is not {example}")
    return float(match[1]) * units[match[2]]


KEYS: Final[dict[str, tuple[str, Callable[[Any], float | int]]]] = {
    "history": ("keep_s", duration_s),
    "age": ("max_age_s", duration_s),
    "size": ("max_bytes", size_bytes),
    "share": ("max_share", share),
    "free": ("min_free_share", share),
    "cursors": ("cursor_age_s", duration_s),
}


def retention_of(table: Mapping[str, Any], base: Retention = DEFAULT) -> Retention:
    """The retention in a table; keys that it lacks are taken from `base`."""
    changes: dict[str, Any] = {}
    for key, written in table.items():
        if key not in KEYS:
            raise MisuseError(f"{key!r} is not known here; there are {', '.join(KEYS)}")
        field, read = KEYS[key]
        try:
            changes[field] = read(written)
        except MisuseError as problem:
            raise MisuseError(f"{key}: {problem}") from None
    made = replace(base, **changes)
    shortest = max(min(MOST_SEGMENT_S, made.max_age_s / PARTS), LEAST_SEGMENT_S)
    return replace(made, segment_age_s=shortest)


def retention_in(words: str, base: Retention = DEFAULT) -> Retention:
    """`history=1d,size=10GiB`, as on the command line."""
    table = {}
    for word in filter(None, re.split(r"[,\s]+", words)):
        key, separator, written = word.partition("=")
        if not separator:
            raise MisuseError(f"{word!r} is not key=value; there are {', '.join(KEYS)}")
        table[key] = written
    return retention_of(table, base)


def segment_bytes(retention: Retention) -> int:
    """Small enough that an excess can be removed segment by segment."""
    return min(MOST_SEGMENT_BYTES, retention.max_bytes // PARTS)


def as_table(retention: Retention) -> str:
    """As in a topology file. Times are numbers of seconds, so that none is rounded."""
    words = (
        f"history = {retention.keep_s!r}",
        f"age = {retention.max_age_s!r}",
        f'size = "{retention.max_bytes}B"',
        f"share = {retention.max_share!r}",
        f"free = {retention.min_free_share!r}",
        f"cursors = {retention.cursor_age_s!r}",
    )
    return "{ " + ", ".join(words) + " }"


# ── upkeep ───────────────────────────────────────────────────────────────────────────────

log = logging.getLogger("motet.broker")

LOOK_EVERY_S: Final = 1.0
SEAL_AFTER_S: Final = 10.0
"""Segments acknowledged by then are removed without being sealed, if no history is kept."""
TRY_AGAIN_S: Final = 60.0


class Upkeep:
    """Runs `trim` and `seal` until cancelled."""

    def __init__(self, events: PubendLog, folder: Path) -> None:
        self._events = events
        self._folder = folder
        self.look_every_s = LOOK_EVERY_S
        self.seal_after_s = SEAL_AFTER_S

    def retain(self, retention: Retention) -> None:
        """Use this retention from now on."""
        self._events.retention = retention

    async def trim(self) -> None:
        while True:
            await asyncio.sleep(self.look_every_s)
            try:
                disk = await asyncio.to_thread(Disk.of, self._folder)
            except OSError as problem:
                log.warning("cannot find out how full the disk is: %s", problem)
                disk = None
            self._tell(self._events.trim(disk))

    def _tell(self, trimmed: Trimmed) -> None:
        for name in trimmed.expired:
            log.warning("the cursor %s was not set for too long, and is forgotten", name)
        if trimmed.lost_events:
            log.warning(
                "%s removes up to %d events that subscribers or cursors still need, because of its "
                "retention; they are reported as lost up to tick %d",
                *(self._events.pubend, trimmed.lost_events, trimmed.floor),
            )
        elif trimmed.events:
            log.info(
                "%s removes %d events that are no longer needed",
                self._events.pubend,
                trimmed.events,
            )

    async def seal(self) -> None:
        while True:
            await asyncio.sleep(self.look_every_s)
            try:
                await self._events.seal(time.time() - self.seal_after_s)
            except (StorageError, OSError) as problem:
                # All events are there, in rows; reading them just takes longer.
                log.error("a part of the log stays as it is: %s; tried again later", problem)
                await asyncio.sleep(TRY_AGAIN_S)
