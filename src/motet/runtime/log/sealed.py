"""Single files of records that are complete or absent: for snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from motet.errors import LogCorrupted
from motet.runtime.log.contract import USER_KINDS, Record
from motet.runtime.log.files import (
    NEW,
    disk_failed,
    opened,
    remove_file,
    sync_folder,
    unreadable,
    usable,
    write_all,
)
from motet.runtime.log.folder import WAY_OUT, broken, checked_header
from motet.runtime.log.layout import SEAL, Broken, Encoder, Header, beginning, seal, walk

WRITE_BYTES = 1 << 20

_count = count(1)


def write_sealed(
    path: Path,
    *,
    purpose: str,
    version: int,
    first: int,
    payloads: Iterable[tuple[int, bytes]],
    chain: int = 0,
) -> None:
    """Write records of (kind, payload), numbered from `first`, to a file that appears under its
    name only once it is complete and durable. `chain` is the checksum that the records continue: a
    file that belongs to a place in a log takes the log's."""
    # The name is unique: a process that outlived its broker may be writing the same file.
    new = path.with_name(f"{path.name}.{os.getpid()}-{next(_count)}{NEW}")
    try:
        _write(new, Header(purpose, version, first, chain), payloads)
        os.rename(new, path)
        sync_folder(path.parent)
    except OSError as error:
        remove_file(new)
        raise disk_failed(new, error, f"{path.name} is as it was before") from error
    except BaseException:
        remove_file(new)
        raise


def _write(path: Path, header: Header, payloads: Iterable[tuple[int, bytes]]) -> None:
    encoder = Encoder(header.first - 1, header.seed)
    parts, size = [header.encode()], 0
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        for kind, payload in payloads:
            assert 0 <= kind < USER_KINDS, kind
            parts += encoder.encode((payload,), kind)
            size += len(payload)
            if size >= WRITE_BYTES:
                write_all(descriptor, b"".join(parts))
                parts, size = [], 0
        parts.append(seal(encoder.sequence + 1, encoder.chain))
        write_all(descriptor, b"".join(parts))
        os.fsync(descriptor)


class SealedFile:
    """Iterating yields the records and verifies all of them, and that none is missing."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.version = header.version
        self.first = header.first
        self.chain = header.chain
        self._header = header

    def __iter__(self) -> Iterator[Record]:
        with usable(self.path):
            descriptor = os.open(self.path, os.O_RDONLY)
        place = beginning(self._header)
        is_sealed = False
        try:
            for step in walk(descriptor, place, os.fstat(descriptor).st_size):
                place = step.after
                is_sealed = step.kind == SEAL
                if not is_sealed:
                    yield from step.records()
        except Broken as error:
            raise broken(self.path, error.place, str(error)) from None
        except OSError as error:
            raise unreadable(self.path, error) from error
        finally:
            os.close(descriptor)
        if not is_sealed:
            raise LogCorrupted(
                f"{self.path} ends at offset {place.offset} without its seal; {WAY_OUT}"
            )


def read_sealed(path: Path, *, purpose: str) -> SealedFile:
    """The header is checked now, the records while they are read."""
    with usable(path):
        return SealedFile(path, checked_header(path, purpose))
