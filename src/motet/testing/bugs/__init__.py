"""Deliberate bugs, by the room they are planted in.

Lives here: functions that return patches; their docstrings tell the bug, their decorators which
fault profile shows it, which guarantees it breaks, and what the run must be like.
May import: the rooms it damages, and `motet.testing.patches`.
Must never: be applied outside `motet.testing.mutations.planted`.
Owns: nothing; see `motet.testing.mutations`.
Test this room: `pytest tests/sim/test_mutations.py`
"""
