"""Checkers of order across topics: one file per guarantee, each independent of the protocol.

Lives here: functions from an `OrderHistory` to a `CheckResult`.
May import: `motet.testing.ordering.history`, `motet.testing.checkers.result`.
Must never: import a machine of the protocol, or excuse more than its docstring says.
Test this room: `pytest tests/unit/testing/test_checkers_of_ordering.py`
"""
