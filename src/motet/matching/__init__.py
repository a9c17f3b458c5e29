"""Matching: which filters want this event, and which filters overlap or cover this one.

What lives here
    `FilterIndex`, the one interface; `create_index`, the one way to get an index; the engine in
    C (`_native`, sources in `native/`), the engine in Python (`python_index`, `segment`,
    `column`) that means exactly the same, and `NaiveIndex`, which tries every filter and is the
    measure of both.

How it works
    Filters are spread over bit positions. Per attribute there is one row of bits for "absent",
    one for NaN, and one per cell of the value range; a row has the bits of all filters that
    *reject* such a value. The rows an event hits, or-ed, leave few survivors, and survivors are
    verified exactly. A wrong row could only cost time if it rejects too little; rejecting too
    much would be a bug, which is why the tests compare engines after every kind of churn.

What it may import
    `motet.model` and `motet.errors`, nothing else.

What it must never do
    I/O, clocks, randomness, threads; change an event or a filter it was given; let the order of
    a set or of memory addresses show in an answer (keys are always ascending).

Invariants
    1. An answer equals that of `NaiveIndex` for the same history of adds and removes.
    2. Both engines answer alike, and refuse alike what is not an event (`TypeError`,
       `OverflowError`).
    3. An add or remove costs no time proportional to the size of the index, but for the
       relearning of cells, which is paid for by as many changes before it.
    4. Memory follows the filters that are in the index, not those that ever were.

Test this room only
    .venv/bin/python -m pytest tests/unit/matching
"""

from __future__ import annotations

from motet.matching.index import ENGINE, FilterIndex, create_index
from motet.matching.naive import NaiveIndex
from motet.matching.python_index import PythonIndex

__all__ = ["ENGINE", "FilterIndex", "NaiveIndex", "PythonIndex", "create_index"]
