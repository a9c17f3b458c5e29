"""The log of a pubend: events numbered by ticks, kept until every client has acknowledged them.

    pubend = PubendLog.open(folder, "B1.17")
    position = pubend.append_run(tick, "alice", "B1-17.1", 1, bodies)   # see pubend.durable
    for batch in pubend.read(since, filter=Filter.parse("step > 1")): ...

Lives here
    records      the records of a pubend: runs of events, starts, cuts, checkpoints
    state        state that needs no reading (last tick, last sequences, cursors, the parts and
                 their ticks, durable ticks), and its recovery after a crash
    reading      ranges of ticks, from part to part; filters by row
    tables       the same as Arrow tables, for late readers
    outline      sizes and transactions along the stream, without the content of events
    retention    how long events are kept
    shelf        sealed segments on disk, and their catalogue
    sealing      rewrites a segment of rows as an Arrow file, in a process of its own
    columns      the layout of a sealed file, and reading it
    selection    filters by column
    pubend_log   the log itself

May import: `motet.errors`, `motet.model`, `motet.protocol.reading`, `motet.runtime.log`, msgspec,
the standard library;
pyarrow only where columns are written or filtered, and only then.

Must never: look into a payload; decide which tick an event gets; report a tick that is no longer
kept as silence.

Invariants owned here
    - Ticks only grow, and so do the sequences of a publisher's session; both survive a crash
      together with their events.
    - A read covers every tick of its range once, with a batch or a loss.
    - Tables from rows and from columns are the same.
    - Bodies are returned byte by byte as they were appended.
    - Events that are removed while still owed are counted and reported.

Test only this room: `pytest tests/unit/pubend`
"""

from motet.runtime.pubend.pubend_log import PubendLog
from motet.runtime.pubend.reading import EventBatch, Lost
from motet.runtime.pubend.records import EventRun, Start, StoredCut, StoredPredecessors
from motet.runtime.pubend.retention import Disk, Retention, Trimmed
from motet.runtime.pubend.state import SegmentedLog

__all__ = [
    "Disk",
    "EventBatch",
    "EventRun",
    "Lost",
    "PubendLog",
    "Retention",
    "SegmentedLog",
    "Start",
    "StoredCut",
    "StoredPredecessors",
    "Trimmed",
]
