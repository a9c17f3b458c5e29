"""All events of a replay in one order, on disk, divided among publishers.

A plan is named by what it is made of, and for whom: the files, their sizes and times, the names of
columns, the number of publishers, the brokers, whether events tell where they are from, and a word
of the user's. So who asks for the same again goes on with the same plan, and nobody else does.

    WORK/MARK/part-….parquet   the events
    WORK/MARK/_plan.json       the note: the plan is whole, and what its files must be
    WORK/MARK/_begun           something may have been published
    WORK/MARK/_done            everything was, and how much that is
    WORK/MARK.lock             locked by who makes the plan, or publishes it
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from motet.errors import StorageError
from motet.spark.filling import locked

NOTE: Final = "_plan.json"
BEGUN: Final = "_begun"
DONE: Final = "_done"
MARK_CHARS: Final = 12
BATCH_ROWS: Final = 4096
FORMAT: Final = 2


class Part(Struct, frozen=True):
    """A file of a plan."""

    name: str
    rows: int
    sha256: str


class Made(Struct, frozen=True):
    """Of what, and for whom."""

    source: str
    files: tuple[tuple[str, int, int], ...]
    """Of a log: paths, sizes in bytes, times of change in nanoseconds."""
    upto: tuple[tuple[str, int], ...]
    """Of an archive: ticks."""
    wish: str
    """A hash of all that the user said besides."""

    @property
    def mark(self) -> str:
        return mark_of(msgspec.to_builtins(self))


class Plan(Struct, frozen=True):
    folder: str
    mark: str
    """The same for the same replay."""
    source: str
    rows: int
    publishers: int
    first_us: int
    last_us: int
    kind: str
    """`archive` or `log`."""
    made: Made
    shares: tuple[int, ...]
    """How many rows each publisher has."""
    parts: tuple[Part, ...]
    remarks: tuple[str, ...] = ()
    """What was found when it was made, and should be known."""
    format: int = FORMAT

    @property
    def span_s(self) -> float:
        return (self.last_us - self.first_us) / 1e6

    def client_id(self, publisher: int) -> str:
        return f"replay-{self.mark}-{publisher}"

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """All rows, in order."""
        import pyarrow.parquet

        for part in self.parts:
            path = Path(self.folder, part.name)
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    yield batch.to_pylist()

    def check(self) -> None:
        """Its files are what they were when it was made."""
        there = {path.name for path in Path(self.folder).glob("*.parquet")}
        for name in sorted(there ^ {part.name for part in self.parts}):
            what = "is not of this plan" if name in there else "is missing"
            raise StorageError(f"{Path(self.folder, name)} {what}; {_way_out(Path(self.folder))}")
        for part in self.parts:
            path = Path(self.folder, part.name)
            if _sha256(path) != part.sha256:
                raise StorageError(
                    f"{path} is damaged, or was changed since the plan was made; "
                    f"{_way_out(Path(self.folder))}"
                )

    # ── how far it is ────────────────────────────────────────────────────────────────────

    def has(self, what: str) -> bool:
        return (Path(self.folder) / what).exists()

    def remember(self, what: str) -> None:
        told = {"mark": self.mark, "rows": self.rows}
        write_whole(Path(self.folder, what), msgspec.json.encode(told))

    @property
    def is_done(self) -> bool:
        """As was remembered; what was remembered must be of this plan."""
        path = Path(self.folder, DONE)
        if not path.exists():
            return False
        try:
            told = msgspec.json.decode(path.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError):
            told = None
        if told != {"mark": self.mark, "rows": self.rows}:
            raise StorageError(
                f"{path} does not say that the {self.rows:,} events of this plan were published: "
                f"it is damaged, or of another plan. Without it the same command goes on behind "
                f"the last event, or says that nobody knows which that was"
            )
        return True


# ── notes ────────────────────────────────────────────────────────────────────────────────


def noted(
    folder: Path,
    made: Made,
    publishers: int,
    kind: str,
    remarks: tuple[str, ...],
    rows: int,
) -> Plan | None:
    """A plan whose files have been written; None if nothing is in them. `rows` is how many there
    must be."""
    import pyarrow.parquet

    parts, ends = [], []
    shares = [0] * publishers
    for path in sorted(folder.glob("*.parquet")):
        size = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["_time_us", "_publisher"]):
                times, by = (column.to_pylist() for column in batch.columns)
                size += len(times)
                ends += times[:1] + times[-1:]
                for publisher in by:
                    shares[publisher] += 1
        parts.append(Part(path.name, size, _sha256(path)))
    if rows != sum(shares):
        raise StorageError(
            f"{made.source} has {rows:,} events, and Spark has read {sum(shares):,} of them: does "
            f"its configuration pass over files?"
        )
    if not ends:
        return None
    if ends != sorted(ends):
        raise StorageError(f"the plan in {folder} is not in order; remove it and try again")
    plan = Plan(
        str(folder), made.mark, made.source, sum(shares), publishers, ends[0], ends[-1], kind,
        made, tuple(shares), tuple(parts), remarks,
    )  # fmt: skip
    write_whole(folder / NOTE, msgspec.json.encode(plan))
    return plan


def found(folder: Path, made: Made) -> Plan | None:
    """The plan that is in a folder, if somebody has finished to make one there."""
    path = folder / NOTE
    if not path.exists():
        if (folder / BEGUN).exists() or (folder / DONE).exists():
            raise StorageError(
                f"{path} is missing, and events of this plan were published; {_way_out(folder)}"
            )
        return None
    plan = read_note(path)
    if plan is None:
        raise StorageError(
            f"{path} is damaged, cut off, or written by another release; {_way_out(folder)}"
        )
    if plan.mark != made.mark or plan.made != made:
        raise StorageError(
            f"{path} is the plan of another replay, of {plan.source}; {_way_out(folder)}"
        )
    return msgspec.structs.replace(plan, folder=str(folder))


def read_note(path: Path) -> Plan | None:
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return plan if plan.format == FORMAT else None


def of_the_same_before(work: Path, made: Made) -> list[Plan]:
    """Plans that were asked for in the same words, of what the source was then, and were begun."""
    plans = (read_note(path) for path in sorted(work.glob(f"*/{NOTE}")))
    return [
        msgspec.structs.replace(plan, folder=str(work / plan.mark))
        for plan in plans
        if plan is not None
        and (plan.made.source, plan.made.wish) == (made.source, made.wish)
        and plan.mark != made.mark
        and (work / plan.mark / BEGUN).exists()
    ]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else makes or publishes the plan of this folder during the block; `MisuseError` if
    somebody does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.lock")
    problem = (
        f"the same replay is under way in {folder}, by another process: wait until that has ended, "
        f"or --run NAME publishes all of it once more"
    )
    with locked(path, problem):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def mark_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:MARK_CHARS]


def write_whole(path: Path, data: bytes) -> None:
    """All of it or nothing, whatever dies."""
    from motet.spark.archive.manifest import sync_folder, write_durably

    beside = path.with_name(f".{path.name}")
    write_durably(beside, data)
    os.replace(beside, path)
    sync_folder(path.parent)


def _way_out(folder: Path) -> str:
    return (
        f"put {folder} back from a copy, or begin anew, from the first event: with --run NAME, or, "
        f"if nothing was published yet, without that folder"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
