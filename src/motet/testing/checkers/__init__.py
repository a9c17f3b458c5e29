"""Checkers: one file per guarantee, each separate from what it checks and from the simulator.

Lives here: functions from a recorded history (and, where a guarantee is about tables, the final
tables) to a `CheckResult`: the number of tests made, and the violations with their evidence.
May import: `motet.model`, `motet.testing.history`, `motet.testing.topology`; for tables, the
types of the broker's state.
Must never: ask the matching index, call `step`, or excuse more than its docstring says.
Owns: every guarantee of `docs/guarantees.md` that one run can show to be broken.
Test this room: `pytest tests/unit/testing`
"""
