"""What a broker's log of events tells its core after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Remembered(NamedTuple):
    """What the pubend's log knows after a restart."""

    last_tick: int = 0
    published: Mapping[tuple[str, str], int] = {}
    """By client and epoch, the last sequence."""
    skipped: Mapping[tuple[str, str], tuple[int, ...]] = {}
    """By client and epoch, lower sequences that never came to the log: if their events were to
    arrive exactly once, they were refused."""
    destroyed_upto: int = 0
    """The log up to this tick is gone: what is not known here may have been in it."""
