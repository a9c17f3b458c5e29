"""Matching: which filters match an event, and which filters overlap or cover a filter.

What lives here
    `FilterIndex`, the one interface; `create_index`, the one way to get an index; the engine in
    C (`_native`, sources in `native/`), the equivalent engine in Python (`python_index`), and
    `NaiveIndex`, which tries every filter and is the reference for both.

How it works
    Filters are spread over bit positions. Per attribute there is one row of bits for "absent",
    one for NaN, and one per cell of the value range; a row has the bits of all filters that
    *reject* such a value. The rows an event hits, or-ed, leave few survivors, and survivors are
    verified exactly. A row that rejects too little only costs time; one that rejects too much
    would be a bug, which is why the tests compare engines after every kind of churn.

What it may import
    `motet.model` and `motet.errors`, nothing else.

What it must never do
    I/O, clocks, randomness, threads; change an event or a filter it was given; let the order of
    a set or of memory addresses show in an answer (keys are always ascending).

Invariants
    1. An answer equals that of `NaiveIndex` for the same history of adds and removes.
    2. Both engines give the same answers, and reject the same invalid events (`TypeError`,
       `OverflowError`).
    3. An add or remove costs no time proportional to the size of the index, except for the
       relearning of cells, which is amortized over as many changes before it.
    4. Memory depends on the filters that are in the index, not on those that ever were.

Test this room only
    .venv/bin/python -m pytest tests/unit/matching
"""

from __future__ import annotations

from motet.matching.index import ENGINE, FilterIndex, create_index
from motet.matching.python_index import NaiveIndex, PythonIndex

__all__ = ["ENGINE", "FilterIndex", "NaiveIndex", "PythonIndex", "create_index"]
