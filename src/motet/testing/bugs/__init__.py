"""Deliberate bugs, by the room they are planted in.

Lives here: functions that return patches, or that replace one method; a docstring describes the
bug, a decorator names the fault profile that shows it, the guarantees that it breaks, and settings
that the run needs.
May import: the rooms that the bugs are in, and `motet.testing.brokers`.
Must never: be applied outside `planted`.
Owns: `MUTATIONS`, all of them by name.
Test this room: `pytest tests/sim/test_mutations.py`
"""

from motet.testing.bugs import (
    cells,
    delivery,
    durability,
    hosted,
    links,
    moves,
    ordering,
    refusals,
    routing,
    sessions,
    standbys,
    strays,
    transactions,
)
from motet.testing.bugs.catalogue import MUTATIONS, planted

__all__ = [
    "MUTATIONS",
    "cells",
    "delivery",
    "durability",
    "hosted",
    "links",
    "moves",
    "ordering",
    "planted",
    "refusals",
    "routing",
    "sessions",
    "standbys",
    "strays",
    "transactions",
]
