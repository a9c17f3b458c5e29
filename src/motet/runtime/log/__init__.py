"""The log: numbered records that survive a crash, in order; any loss or damage is detected.

    log = FileLog.open(folder, purpose="journal", version=1)
    position = log.append([b"one", b"two"])     # queued; durable once log.durable >= position
    for record in log.read(1): ...

Lives here
    contract     the interface of every log; its simulated twin is `motet.testing.log`
    layout       encodes and decodes records and headers; walks through the records of one file and
                 verifies the chain; tells a torn record from a damaged one
    files        syncs, renames and small marks that survive a power failure
    folder       opens a log: the lock, the segments and their succession; inspects a folder,
                 damaged or not
    file_log     the log itself, and the thread that writes and syncs, group by group
    sealed       single files of the same records, for snapshots

May import: `motet.errors`, the standard library.

Must never: know what a payload means; change or drop anything that may have been acknowledged;
retry a failed write or sync.

Invariants owned here
    - `durable` <= `appended`; durable records survive a crash of the process and, with `fsync`,
      of the machine.
    - A crash keeps a prefix of the appended records, and numbering continues from there.
    - A group is written only after the group before it was synced.
    - Every reader detects a record that is missing, duplicated, swapped, foreign or changed.
      Only a tail that was never acknowledged is ever cut (decision 0014).

Test only this room: `pytest tests/unit/log tests/conformance -k log`
"""

from motet.runtime.log.contract import Durability, Extent, Log, Record
from motet.runtime.log.file_log import FileLog
from motet.runtime.log.folder import SegmentReport, inspect
from motet.runtime.log.sealed import SealedFile, read_sealed, write_sealed

__all__ = [
    "Durability",
    "Extent",
    "FileLog",
    "Log",
    "Record",
    "SealedFile",
    "SegmentReport",
    "inspect",
    "read_sealed",
    "write_sealed",
]
