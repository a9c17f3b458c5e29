"""How long a pubend keeps its stream."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

DAY_S: Final = 86_400.0


class Retention(Struct, frozen=True, kw_only=True):
    """What everybody has goes. What somebody is still owed goes only by age or size, and that is
    reported as loss. Whole parts go, oldest first."""

    keep_s: float = 0.0
    """Keep even what everybody has for so long: for late readers."""
    max_age_s: float = 7 * DAY_S
    max_bytes: int = 8 << 30
    cursor_age_s: float = 7 * DAY_S
    """A named cursor that nobody has touched for so long is abandoned."""
    segment_age_s: float = 3600.0
    """A segment gets no older before the next one begins, however little is in it: only then can
    what is in it go."""


class Trimmed(Struct, frozen=True):
    """What a trim did."""

    floor: int
    """Ticks up to this one are not kept any more."""
    events: int = 0
    lost_events: int = 0
    """How many were in parts of which somebody was still owed something: he lacks no more."""
    expired: tuple[str, ...] = ()
    """The cursors that were abandoned."""
