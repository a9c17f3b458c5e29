"""Seals a segment: surveys its attributes, then rewrites it as an Arrow file with an index."""

from __future__ import annotations

import gc
import os
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec

from motet.errors import EventError, LogCorrupted, MotetError, StorageError
from motet.model import Value, check_attributes
from motet.runtime.log import read_sealed
from motet.runtime.log.files import NEW, disk_failed, opened, remove_file, replace_file, sync_folder
from motet.runtime.log.folder import WAY_OUT
from motet.runtime.pubend.columns import (
    FORMAT,
    WITH_PREDECESSORS,
    Chunk,
    FileBlock,
    FileColumn,
    Index,
    Runs,
    arrow_type,
    stream_columns,
)
from motet.runtime.pubend.reading import contents_of, unreadable_event
from motet.runtime.pubend.records import (
    CHECKPOINT,
    PREDECESSORS,
    RUN,
    TICKED,
    Checkpoint,
    EventRun,
    encode,
    last_tick_of,
)
from motet.runtime.pubend.selection import BOOL, FLOAT, INT, KIND_OF, TEXT, TIME
from motet.runtime.pubend.state import SealedPart, decoded

MAX_COLUMNS: Final = 256
MAX_WORDS: Final = 1024
"""An attribute with more different texts than this is not stored as numbers."""
MAX_LEFTOVERS: Final = 4096

LEAST_ROW_BYTES: Final = 64
"""Columns may take this many bytes per event, however small the events are."""

GATHERED_EVENTS: Final = 2048
"""The number of events that are surveyed at once, attribute by attribute."""
DENSE_NAMES: Final = 512
"""With more attributes, events are surveyed one by one: most attributes hardly have a value."""

_WIDTHS: Final = {BOOL: 0.125, INT: 8.0, FLOAT: 8.0, TEXT: 4.0, TIME: 8.0}


class SegmentSurvey:
    """Counts the values of each attribute by kind, and collects what sealing needs in advance."""

    def __init__(self) -> None:
        self.rows = 0
        self.size_bytes = 0
        self.last_tick = 0
        self.last_sequence = 0
        self.events = 0
        self.format = FORMAT
        self.checkpoint: Checkpoint
        self.values: Counter[tuple[str, str]] = Counter()
        self.names = {""}
        """The names of publishers and epochs."""
        self.words: dict[str, set[str]] = {}
        self.ranges: dict[str, tuple[int, int]] = {}
        """The least and the greatest int of an attribute."""
        self._text_bytes: Counter[str] = Counter()
        self._gathered: list[dict[str, Value]] = []

    # ── taking events ────────────────────────────────────────────────────────────────────

    def take(self, run: EventRun) -> None:
        self.names |= {run.publisher, run.epoch}
        self.rows += run.count
        self.events += run.count
        self.size_bytes += run.size_bytes
        self._gathered += [attributes for attributes, _ in contents_of(run)]
        if len(self._gathered) >= GATHERED_EVENTS:
            try:
                self.finish()
            except EventError as error:
                raise unreadable_event(run, error) from error

    def finish(self) -> None:
        """Survey the gathered events. Raises `EventError` if one is invalid."""
        gathered, self._gathered = self._gathered, []
        names: set[str] = set().union(*gathered)
        if len(names) > DENSE_NAMES:
            for attributes in gathered:
                check_attributes(attributes)
                for name, value in attributes.items():
                    self._look(name, [value])
            return
        for name in names:
            self._look(name, [each[name] for each in gathered if name in each])

    def _look(self, name: str, values: Sequence[Value]) -> None:
        types = Counter(map(type, values))
        for kind, count in types.items():
            known = KIND_OF.get(kind)
            if known is None:
                check_attributes({name: next(each for each in values if type(each) is kind)})
            assert known is not None, kind
            self.values[name, known] += count
            of_kind = values if len(types) == 1 else [each for each in values if type(each) is kind]
            if known is TEXT:
                self._texts(name, of_kind)  # type: ignore[arg-type]
            elif known is INT:
                self._ints(name, of_kind)  # type: ignore[arg-type]

    def _texts(self, name: str, values: Sequence[str]) -> None:
        self._text_bytes[name] += sum(map(len, values))
        words = self.words.setdefault(name, set())
        if len(words) <= MAX_WORDS:
            words.update(values)

    def _ints(self, name: str, values: Sequence[int]) -> None:
        least, greatest = min(values), max(values)
        check_attributes({name: least})
        check_attributes({name: greatest})
        known = self.ranges.get(name)
        if known is not None:
            least, greatest = min(least, known[0]), max(greatest, known[1])
        self.ranges[name] = least, greatest

    # ── results ──────────────────────────────────────────────────────────────────────────

    def int_bits(self, name: str) -> int:
        """The width of a column that holds every int of an attribute."""
        least, greatest = self.ranges[name]
        for bits in (8, 16, 32):
            if -(1 << (bits - 1)) <= least and greatest < 1 << (bits - 1):
                return bits
        return 64

    def is_numbered(self, name: str) -> bool:
        """Whether its texts are few enough, and repeated often enough."""
        words = self.words.get(name, ())
        return 0 < len(words) <= min(MAX_WORDS, self.values[name, TEXT] // 2)

    def columns(self) -> dict[str, list[str]]:
        """The attributes that get columns, with their kinds: all kinds of one or none. Frequent
        ones come first, and all columns together are at most as large as the events, unless these
        are tiny: a column costs as much for a rare attribute as for one that all events have."""
        kinds: dict[str, list[str]] = {}
        counts: Counter[str] = Counter()
        for name, kind in sorted(self.values):
            kinds.setdefault(name, []).append(kind)
            counts[name] += self.values[name, kind]
        left = max(self.size_bytes, self.rows * LEAST_ROW_BYTES)
        chosen: dict[str, list[str]] = {}
        for name, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
            cost = sum(self.rows * (_WIDTHS[kind] + 0.125) for kind in kinds[name])
            if not self.is_numbered(name):
                cost += self._text_bytes[name]
            if cost <= left and len(chosen) < MAX_COLUMNS:
                left -= int(cost)
                chosen[name] = kinds[name]
        return chosen

    def leftovers(self, columns: dict[str, list[str]]) -> list[str] | None:
        names = sorted({name for name, _ in self.values} - columns.keys())
        return names if len(names) <= MAX_LEFTOVERS else None


# ── the second pass: the rows of a block ─────────────────────────────────────────────────

BLOCK_ROWS: Final = 16_384
BLOCK_BYTES: Final = 8 << 20
RUN_EVENTS: Final = 1024
RUN_BYTES: Final = 256 * 1024
"""Adjacent runs become one, up to this size."""
PAIR: Final = 0x92
"""The first byte of a body: attributes and payload follow."""


class BlockRows:
    def __init__(self, names: dict[str, int]) -> None:
        self._names = names
        """The numbers of publishers and epochs."""
        self.bodies: list[Any] = []
        self.attributes: list[dict[str, Value]] = []
        self.payload_sizes = array("I")
        self.offsets = array("i", [0])
        self.runs = Runs([], [], [], [], [], [], [])
        self.size_bytes = 0
        self.last_tick = 0
        self.are_plain = True
        """Attributes and payload of every event can be located by the size of the payload."""

    @property
    def is_full(self) -> bool:
        return len(self.bodies) >= BLOCK_ROWS or self.size_bytes >= BLOCK_BYTES

    def add_run(self, run: EventRun) -> None:
        bodies = run.bodies
        contents = contents_of(run)
        self.attributes += [attributes for attributes, _ in contents]
        sizes = [len(payload) for _, payload in contents]
        self.payload_sizes.extend(sizes)
        self.are_plain = self.are_plain and all(map(_is_plain, bodies, sizes))
        if not self._continues(run):
            self._begin(RUN, run.first_tick, run.publisher, run.epoch, run.first_sequence)
        self._put(bodies)
        self.last_tick = run.last_tick

    def add_other(self, kind: int, tick: int, payload: bytes) -> None:
        self._begin(kind, tick, "", "", 0)
        self.attributes.append({})
        self.payload_sizes.append(0)
        self._put([payload])
        self.last_tick = tick

    def _continues(self, run: EventRun) -> bool:
        runs, rows = self.runs, len(self.bodies)
        if not runs.kinds or runs.kinds[-1] != RUN or run.first_tick != self.last_tick + 1:
            return False
        count = rows - runs.first_rows[-1]
        return (
            runs.publishers[-1] == self._names[run.publisher]
            and runs.epochs[-1] == self._names[run.epoch]
            and runs.first_sequences[-1] + count == run.first_sequence
            and count + run.count <= RUN_EVENTS
            and self.size_bytes - runs.first_bytes[-1] + run.size_bytes <= RUN_BYTES
        )

    def _begin(self, kind: int, tick: int, publisher: str, epoch: str, sequence: int) -> None:
        runs, names = self.runs, self._names
        runs.kinds.append(kind)
        runs.first_ticks.append(tick)
        runs.publishers.append(names[publisher])
        runs.epochs.append(names[epoch])
        runs.first_sequences.append(sequence)
        runs.first_rows.append(len(self.bodies))
        runs.first_bytes.append(self.size_bytes)

    def _put(self, bodies: list[Any]) -> None:
        sizes = [len(memoryview(body)) for body in bodies]
        self.offsets.extend(islice(accumulate(sizes, initial=self.size_bytes), 1, None))
        self.bodies += bodies
        self.size_bytes = self.offsets[-1]

    def finished_runs(self) -> Runs:
        self.runs.first_rows.append(len(self.bodies))
        self.runs.first_bytes.append(self.size_bytes)
        return self.runs


def _is_plain(body: Any, payload_bytes: int) -> bool:
    """Whether a body has the form that `split_bodies` needs: see `motet.runtime.pubend.tables`."""
    head = packed_head(payload_bytes)
    end = len(view := memoryview(body)) - payload_bytes
    return view[0] == PAIR and view[end - len(head) : end] == head


def packed_head(size_bytes: int) -> bytes:
    """The msgpack head of a binary of this size."""
    if size_bytes < 1 << 8:
        return b"\xc4" + size_bytes.to_bytes(1, "big")
    if size_bytes < 1 << 16:
        return b"\xc5" + size_bytes.to_bytes(2, "big")
    return b"\xc6" + size_bytes.to_bytes(4, "big")


# ── the file ─────────────────────────────────────────────────────────────────────────────


LOW_PRIORITY: Final = 10
"""Low, but not starved on a machine that is always busy."""


def seal_segment(source: Path, folder: Path, purpose: str) -> SealedPart:
    """Write the columns of a finished segment, and their index, into a folder."""
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


def _survey(source: Path, purpose: str) -> SegmentSurvey:
    survey = SegmentSurvey()
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
                if record.kind == PREDECESSORS:
                    survey.format = WITH_PREDECESSORS
                survey.rows += 1
                survey.size_bytes += len(record.payload)
    try:
        survey.finish()
    except EventError as error:
        raise LogCorrupted(f"{source} has an event that is none: {error}; {WAY_OUT}") from error
    return survey


class _Sealing:
    def __init__(self, source: Path, purpose: str, target: Path, survey: SegmentSurvey) -> None:
        import pyarrow.compute  # imported only where columns are needed: it is large

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

    def write(self) -> SealedPart:
        # The name is unique: the process of a killed broker may still seal the same segment.
        new = self._target.with_name(f"{self._target.name}.{os.getpid()}{NEW}")
        parent = os.getppid()
        try:
            self._write(new)
            index, checksum = self._index(new)
            arrow_bytes = new.stat().st_size
            with opened(new) as descriptor:
                os.fsync(descriptor)
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
        return SealedPart(
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
                writer = arrow.ipc.new_file(sink, self._batch(BlockRows(self._names)).schema)
            writer.close()

    def _filled_rows(self) -> Iterator[BlockRows]:
        rows = BlockRows(self._names)
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
                rows = BlockRows(self._names)
        if rows.bodies:
            yield rows

    def _batch(self, rows: BlockRows) -> Any:
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
        """The place of everything in the file, and the checksum of the whole file."""
        arrow = self._arrow
        with arrow.memory_map(str(path)) as source:
            whole = source.read_buffer()
            reader = arrow.ipc.open_file(arrow.BufferReader(whole))
            blocks = [
                self._block(whole, reader.get_batch(number), *about)
                for number, about in enumerate(self._blocks)
            ]
            checksum = crc32(whole)
        survey = self._survey
        leftovers = survey.leftovers(self._columns)
        names = list(self._names)
        index = Index(survey.format, names, self._words, self._bits, leftovers, blocks)
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
    ) -> FileBlock:
        view = memoryview(whole)

        def chunk(buffer: Any) -> Chunk:
            offset = buffer.address - whole.address if buffer.size else 0
            return Chunk(offset, buffer.size, crc32(view[offset : offset + buffer.size]))

        columns: dict[str, dict[str, FileColumn]] = {}
        for name, kind in self._fields:
            values = batch.column(f"{name}:{kind}")
            if values.null_count == rows:
                continue
            if name in self._words and kind is TEXT:
                values = values.indices
            validity, *data = values.buffers()
            column = FileColumn(
                chunk(validity) if validity is not None else None, [chunk(each) for each in data]
            )
            columns.setdefault(name, {})[kind] = column
        _, offsets, bodies = batch.column("body").buffers()
        checksums = batch.column("checksum").buffers()[1]
        payload_sizes = batch.column("payload_bytes").buffers()[1]
        return FileBlock(
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


class SealingOutcome(msgspec.Struct):
    """The output of the sealing process."""

    sealed: SealedPart | None = None
    error: str = ""
    text: str = ""


def main() -> None:
    os.nice(LOW_PRIORITY)
    gc.disable()  # many objects are created here, and no cycles
    source, folder, purpose = sys.argv[1:]
    try:
        outcome = SealingOutcome(seal_segment(Path(source), Path(folder), purpose))
    except MotetError as error:
        outcome = SealingOutcome(None, type(error).__name__, str(error))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
