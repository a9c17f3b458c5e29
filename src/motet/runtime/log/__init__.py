"""The log: numbered records that are still there after a crash, in order, or say so.

    log = FileLog.open(folder, purpose="journal", version=1)
    position = log.append([b"one", b"two"])     # taken; durable once log.durable >= position
    for record in log.read(1): ...

Lives here
    contract     what every log offers; its simulated twin is `motet.testing.log`
    layout       records and headers as bytes, and back
    scan         from record to record through one file, verifying the chain
    tail         a broken record: was its group torn by a crash, or is it damage?
    files        syncs, renames and small marks that survive a power failure
    folder       opening: the lock, the segments, whether one follows the other
    writer       the thread that writes and syncs, group by group
    file_log     the log itself
    sealed       single files of the same records, for snapshots
    inspection   what is in a folder, damaged or not

May import: `motet.errors`, the standard library.

Must never: know what a payload means; change or drop anything that may have been acknowledged;
retry a failed write or sync.

Invariants owned here
    - `durable` <= `appended`; what is durable survives a crash of the process and, with `fsync`,
      of the machine.
    - A crash keeps a prefix of what was appended, and numbers go on from there.
    - A group is written only after the group before it was synced.
    - A record that is missing, doubled, swapped, foreign or changed is noticed by whoever reads
      it. Only a tail that was never acknowledged is ever cut (decision 0014).

Test only this room: `pytest tests/unit/log tests/conformance -k log`
"""

from motet.runtime.log.contract import Durability, Extent, Log, Record
from motet.runtime.log.file_log import FileLog
from motet.runtime.log.inspection import SegmentReport, inspect
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
