"""A broker's state on disk.

Lives here
    journal              makes facts durable
    recovery             the folder: its journal, its snapshots, and the broker rebuilt from both
    compaction           snapshots while the broker runs, taken by another process
    examination          checks and describes a folder for an operator
    retention            the log of events: how long they are kept; seals and trims it

May import: `motet.broker.core`, `motet.runtime` and everything below them.

Must never: repair anything silently except a tail that was never acknowledged.

Invariants owned here
    - Opening a folder restores the broker as it was, or raises an error that names the problem.
    - A snapshot is on disk before the segments that it replaces are removed.

Test only this room: `pytest tests/unit/broker tests/integration/test_durability.py`
"""
