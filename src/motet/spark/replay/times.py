"""Times that logs write as text: ISO 8601, and nothing that would have to be guessed.

Spark's own reading takes `10:00` for today and a number for seconds, so it is not asked.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

LIKE: Final = "2026-03-01T09:00:00Z"
"""How a time is written, for those who wrote it otherwise."""
LOCAL: Final = "UTC"
"""What a time without a zone is taken for."""
REMEMBERED: Final = 1 << 14
_FORM: Final = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?"
    r"(?: ?(?P<zone>[Zz]|UTC|GMT|[+-]\d\d(?::?\d\d)?))?)?\Z",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_US: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MINUTE_US: Final = 60_000_000
_DIGITS: Final = 6
_FARTHEST_MINUTES: Final = 14 * 60


class Time(NamedTuple):
    us: int
    """Microseconds since 1970, in UTC."""
    is_zoned: bool
    is_cut: bool
    """It was finer than microseconds."""


@lru_cache(REMEMBERED)  # events of a log share many
def time_of(text: str) -> Time | None:
    found = _FORM.match(text)
    if found is None:
        return None
    fraction = found["fraction"] or ""
    try:
        at = datetime(
            int(found["year"]),
            int(found["month"]),
            int(found["day"]),
            int(found["hour"] or 0),
            int(found["minute"] or 0),
            int(found["second"] or 0),
            int(fraction[:_DIGITS].ljust(_DIGITS, "0")),
            UTC,
        )
    except ValueError:  # a day that no month has, an hour that no day has
        return None
    east = _minutes_east(found["zone"] or "")
    if east is None:
        return None
    us = (at - _EPOCH) // _MICROSECOND - east * _MINUTE_US
    if not _FIRST_US <= us <= _LAST_US:
        return None
    return Time(us, found["zone"] is not None, bool(fraction[_DIGITS:].strip("0")))


def _minutes_east(zone: str) -> int | None:
    if zone[:1] not in ("+", "-"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    if int(digits[2:]) >= 60 or minutes > _FARTHEST_MINUTES:
        return None
    return minutes if zone[0] == "+" else -minutes
