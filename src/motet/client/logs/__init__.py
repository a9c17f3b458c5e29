"""Logs of brokers: reading ranges of them, and writing batches into sinks.

What lives here
    reader        `open_log` and `read`: ranges of a broker's streams, filtered and projected at the
                  broker; the same without `await`
    query         the arguments of a read, checked and encoded; its results: records of a range, or
                  sizes and transactions of a range
    stage         `open_stage` and `commit`: any number of rows that become one transaction; the
                  same without `await`

May import: `motet.model`, `motet.errors`, `motet.runtime`, the frames in `motet.protocol`, and
`motet.client`, whose sessions commit a sink's batch. pyarrow only where records are built.

Must never: open a session to read. A reader sends independent requests, so it can be days behind
and delays no broker and no client. A request is retried only if it is idempotent.

Test only this room: `pytest tests/unit/client/test_reading.py tests/integration/test_log_reads.py
tests/integration/test_sinks.py`
"""

from motet.client.logs.query import REST, LogBatch, LogOutline, LogStep
from motet.client.logs.reader import (
    LogReader,
    SyncLogReader,
    open_log,
    open_log_sync,
    read,
    read_sync,
)

__all__ = [
    "REST",
    "LogBatch",
    "LogOutline",
    "LogReader",
    "LogStep",
    "SyncLogReader",
    "open_log",
    "open_log_sync",
    "read",
    "read_sync",
]
