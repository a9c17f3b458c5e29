"""How long events are kept, as people write it.

    retention = { history = "1d", age = "7d", size = "10GiB", share = 0.5, free = 0.1 }

in a topology file, for the whole overlay or for one broker, or `--retention history=1d,size=10GiB`.
Decision 22 says why these are the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from motet.errors import MisuseError
from motet.runtime.pubend import Retention
from motet.runtime.pubend.retention import DAY_S

DEFAULT: Final = Retention(keep_s=DAY_S, max_age_s=7 * DAY_S, max_bytes=10 << 30)

_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_WRITTEN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\Z")
LEAST_BYTES: Final = 1 << 20
PARTS: Final = 8
"""Whole parts go. So there are about so many of them within the smallest bound."""
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
    """What a table says, and what it does not say as in `base`."""
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
    """Small enough that what is too much can go, part by part."""
    return min(MOST_SEGMENT_BYTES, retention.max_bytes // PARTS)


def as_table(retention: Retention) -> str:
    """As a topology file says it."""
    words = (
        f'history = "{retention.keep_s:g}s"',
        f'age = "{retention.max_age_s:g}s"',
        f'size = "{retention.max_bytes}B"',
        f"share = {retention.max_share!r}",
        f"free = {retention.min_free_share!r}",
        f'cursors = "{retention.cursor_age_s:g}s"',
    )
    return "{ " + ", ".join(words) + " }"
