"""The log of a pubend: events numbered by ticks, kept until everybody has them.

    pubend = PubendLog.open(folder, "B1.17")
    position = pubend.append_run(tick, "alice", "B1-17.1", 1, bodies)   # see pubend.durable
    for batch in pubend.read(since, filter=Filter.parse("step > 1")): ...

Lives here
    records      what a pubend writes: runs of events, starts, checkpoints
    standing     what is known without reading: last tick, who published what, cursors
    durable_ticks   up to which tick it is durable, and transactions are whole
    parts        which ticks are where
    opening      finding all that again after a crash, by reading little
    batches      what a read gives; filters and projections by row
    reading      ranges of ticks, from part to part
    table_reading, tables, block_tables   the same as Arrow tables, for late readers
    outline, entries   how much is where, and which transactions: without what is in the events
    retention    how long everything is kept
    shelf        where sealed segments go: what a shelf offers, and one that takes nothing
    file_shelf   sealed segments on disk, and the catalogue of them
    sealing      a segment of rows becomes an Arrow file, in a process of its own
    survey, rows what sealing finds in a segment, and makes of it
    index        what is where in a sealed file
    columns      reading sealed files
    selection    filters by column
    pubend_log   the log itself

May import: `motet.errors`, `motet.model`, `motet.protocol.reading`, `motet.runtime.log`, msgspec,
the standard library;
pyarrow only where columns are written or filtered, and only then.

Must never: look into a payload; decide which tick an event gets; answer a tick that is not kept
any more with silence.

Invariants owned here
    - Ticks only grow, and so do the sequences of a publisher's session; both survive a crash
      with the events that had them.
    - A read covers every tick of its range once, with a batch or a loss.
    - Tables from rows and from columns are the same.
    - Bodies come back byte by byte as they were appended.
    - What goes before everybody has it is counted and reported.

Test only this room: `pytest tests/unit/pubend`
"""

from motet.runtime.pubend.batches import Batch, Lost, Projection
from motet.runtime.pubend.opening import SegmentedLog
from motet.runtime.pubend.pubend_log import PubendLog
from motet.runtime.pubend.records import Cut, Run, Start
from motet.runtime.pubend.retention import Disk, Retention, Trimmed
from motet.runtime.pubend.shelf import NoShelf, Shelf

__all__ = [
    "Batch",
    "Cut",
    "Disk",
    "Lost",
    "NoShelf",
    "Projection",
    "PubendLog",
    "Retention",
    "Run",
    "SegmentedLog",
    "Shelf",
    "Start",
    "Trimmed",
]
