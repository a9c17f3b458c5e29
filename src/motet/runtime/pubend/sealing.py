"""Sealing: a segment of rows becomes an Arrow file, once.

    python -m motet.runtime.pubend.sealing SEGMENT FOLDER PURPOSE

runs as a process of its own with low priority, so that a broker's event loop does not notice. The
segment is read twice: first to see which attributes there are, then to write them. Nothing is
taken away here; both files are durable under their names before this says so.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec

from motet.errors import EventError, LogCorrupted, MotetError, StorageError
from motet.runtime.log import read_sealed
from motet.runtime.log.files import NEW, disk_failed, remove_file, replace_file, sync_folder
from motet.runtime.log.folder import WAY_OUT
from motet.runtime.pubend.columns import arrow_type
from motet.runtime.pubend.index import (
    FORMAT,
    INT,
    TEXT,
    Block,
    Chunk,
    Column,
    Index,
    Runs,
    stream_columns,
)
from motet.runtime.pubend.opening import decoded
from motet.runtime.pubend.parts import Sealed
from motet.runtime.pubend.records import (
    CHECKPOINT,
    RUN,
    TICKED,
    encode,
    last_tick_of,
)
from motet.runtime.pubend.rows import Rows
from motet.runtime.pubend.survey import KIND_OF, Survey

LOW_PRIORITY: Final = 10
"""Behind everything else, but not starved on a machine that is always busy."""


def seal_segment(source: Path, folder: Path, purpose: str) -> Sealed:
    """Write the columns of a segment that gets no more records, and their index, into a folder."""
    try:
        survey = _survey(source, purpose)
        target = arrow_path(folder, _first_sequence(source, purpose))
        return _Sealing(source, purpose, target, survey).write()
    except OSError as error:
        raise disk_failed(folder, error, f"{source} is as it was before") from error


def arrow_path(folder: Path, first_sequence: int) -> Path:
    return folder / f"{first_sequence:020d}.arrow"


def index_path(folder: Path, first_sequence: int) -> Path:
    return folder / f"{first_sequence:020d}.index"


def _first_sequence(source: Path, purpose: str) -> int:
    return read_sealed(source, purpose=purpose).first


def _survey(source: Path, purpose: str) -> Survey:
    survey = Survey()
    for record in read_sealed(source, purpose=purpose):
        survey.last_sequence = record.sequence
        if record.kind == CHECKPOINT:
            survey.checkpoint = decoded(record, source)
            survey.last_tick = survey.checkpoint.last_tick
        elif record.kind in TICKED:
            content = decoded(record, source)
            survey.last_tick = last_tick_of(content)
            if record.kind == RUN:
                survey.take(content)
            else:
                survey.rows += 1
                survey.size_bytes += len(record.payload)
    try:
        survey.finish()
    except EventError as error:
        raise LogCorrupted(f"{source} has an event that is none: {error}; {WAY_OUT}") from error
    return survey


class _Sealing:
    def __init__(self, source: Path, purpose: str, target: Path, survey: Survey) -> None:
        import pyarrow.compute  # only where columns are needed: it is large

        self._arrow = pyarrow
        self._source = source
        self._purpose = purpose
        self._target = target
        self._survey = survey
        self._columns = survey.columns()
        self._words = {
            name: sorted(survey.words[name])
            for name, kinds in self._columns.items()
            if TEXT in kinds and survey.is_numbered(name)
        }
        self._names = {name: number for number, name in enumerate(sorted(survey.names))}
        self._bits = {
            name: survey.int_bits(name) for name, kinds in self._columns.items() if INT in kinds
        }
        self._fields = [
            (name, kind) for name in sorted(self._columns) for kind in self._columns[name]
        ]
        self._blocks: list[tuple[int, int, int, Runs, bool]] = []
        """Rows, first and last tick, runs, and whether the bodies are plain."""

    def write(self) -> Sealed:
        # A process whose broker was killed may still be at work on the same segment.
        new = self._target.with_name(f"{self._target.name}.{os.getpid()}{NEW}")
        parent = os.getppid()
        try:
            self._write(new)
            index, checksum = self._index(new)
            arrow_bytes = new.stat().st_size
            descriptor = os.open(new, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if os.getppid() != parent:
                raise StorageError(f"sealing {self._source} was left alone; it stays as it is")
            os.rename(new, self._target)
            sync_folder(self._target.parent)
        except BaseException:
            remove_file(new)
            raise
        encoded = encode(index)
        survey = self._survey
        first = _first_sequence(self._source, self._purpose)
        replace_file(index_path(self._target.parent, first), encoded)
        return Sealed(
            first_sequence=first,
            last_sequence=survey.last_sequence,
            floor=survey.checkpoint.last_tick,
            last_tick=survey.last_tick,
            events=survey.events,
            size_bytes=arrow_bytes + len(encoded),
            began_s=survey.checkpoint.began_s,
            arrow_bytes=arrow_bytes,
            arrow_checksum=checksum,
            index_checksum=crc32(encoded),
            cut_before=survey.checkpoint.last_cut,
        )

    # ── columns ──────────────────────────────────────────────────────────────────────────

    def _write(self, path: Path) -> None:
        arrow = self._arrow
        with arrow.OSFile(str(path), "wb") as sink:
            writer = None
            for rows in self._filled_rows():
                batch = self._batch(rows)
                if writer is None:
                    writer = arrow.ipc.new_file(sink, batch.schema)
                writer.write_batch(batch)
            if writer is None:
                writer = arrow.ipc.new_file(sink, self._batch(Rows(self._names)).schema)
            writer.close()

    def _filled_rows(self) -> Iterator[Rows]:
        rows = Rows(self._names)
        for record in read_sealed(self._source, purpose=self._purpose):
            if record.kind not in TICKED:
                continue
            content = decoded(record, self._source)
            if record.kind == RUN:
                rows.add_run(content)
            else:
                rows.add_other(record.kind, content.tick, record.payload)
            if rows.is_full:
                yield rows
                rows = Rows(self._names)
        if rows.bodies:
            yield rows

    def _batch(self, rows: Rows) -> Any:
        arrow = self._arrow
        count = len(rows.bodies)
        runs = rows.finished_runs()
        if count:
            about = (count, runs.first_ticks[0], rows.last_tick, runs, rows.are_plain)
            self._blocks.append(about)
        named: dict[str, Any] = dict(stream_columns(arrow, runs, list(self._names)))
        bodies = arrow.py_buffer(b"".join(rows.bodies))
        buffers = [None, arrow.py_buffer(rows.offsets), bodies]
        named["body"] = arrow.Array.from_buffers(arrow.binary(), count, buffers)
        named["payload_bytes"] = arrow.array(rows.payload_sizes, arrow.uint32())
        named["checksum"] = arrow.array(map(crc32, rows.bodies), arrow.uint32(), size=count)
        for name, kind in self._fields:
            wanted = _PYTHON[kind]
            values = [each.get(name) for each in rows.attributes]
            if len(self._columns[name]) > 1:
                values = [value if type(value) is wanted else None for value in values]
            named[f"{name}:{kind}"] = self._array(name, kind, values)
        return arrow.record_batch(list(named.values()), names=list(named))

    def _array(self, name: str, kind: str, values: list[Any]) -> Any:
        arrow = self._arrow
        if kind is TEXT and name in self._words:
            words = self._words[name]
            numbers = {word: number for number, word in enumerate(words)}
            indices = arrow.array([numbers.get(value) for value in values], arrow.int16())
            return arrow.DictionaryArray.from_arrays(indices, arrow.array(words, arrow.string()))
        return arrow.array(values, arrow_type(arrow, kind, self._bits.get(name, 64)))

    # ── the index ────────────────────────────────────────────────────────────────────────

    def _index(self, path: Path) -> tuple[Index, int]:
        """Where everything has come to lie, and the checksum of the whole file."""
        arrow = self._arrow
        with arrow.memory_map(str(path)) as source:
            whole = source.read_buffer()
            reader = arrow.ipc.open_file(arrow.BufferReader(whole))
            blocks = [
                self._block(whole, reader.get_batch(number), *about)
                for number, about in enumerate(self._blocks)
            ]
            checksum = crc32(whole)
        leftovers = self._survey.leftovers(self._columns)
        index = Index(FORMAT, list(self._names), self._words, self._bits, leftovers, blocks)
        return index, checksum

    def _block(
        self,
        whole: Any,
        batch: Any,
        rows: int,
        first_tick: int,
        last_tick: int,
        runs: Runs,
        are_plain: bool,
    ) -> Block:
        view = memoryview(whole)

        def chunk(buffer: Any) -> Chunk:
            offset = buffer.address - whole.address if buffer.size else 0
            return Chunk(offset, buffer.size, crc32(view[offset : offset + buffer.size]))

        columns: dict[str, dict[str, Column]] = {}
        for name, kind in self._fields:
            values = batch.column(f"{name}:{kind}")
            if values.null_count == rows:
                continue
            if name in self._words and kind is TEXT:
                values = values.indices
            validity, *data = values.buffers()
            column = Column(
                chunk(validity) if validity is not None else None, [chunk(each) for each in data]
            )
            columns.setdefault(name, {})[kind] = column
        _, offsets, bodies = batch.column("body").buffers()
        checksums = batch.column("checksum").buffers()[1]
        payload_sizes = batch.column("payload_bytes").buffers()[1]
        return Block(
            rows,
            first_tick,
            last_tick,
            chunk(bodies),
            chunk(offsets),
            chunk(checksums),
            columns,
            msgspec.Raw(encode(runs)),
            chunk(payload_sizes) if are_plain else None,
        )


_PYTHON: Final = {kind: python for python, kind in KIND_OF.items()}


class Outcome(msgspec.Struct):
    """What the process says when it is done."""

    sealed: Sealed | None = None
    error: str = ""
    text: str = ""


def main() -> None:
    os.nice(LOW_PRIORITY)
    gc.disable()  # much is made here, and nothing in circles
    source, folder, purpose = sys.argv[1:]
    try:
        outcome = Outcome(seal_segment(Path(source), Path(folder), purpose))
    except MotetError as error:
        outcome = Outcome(None, type(error).__name__, str(error))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
