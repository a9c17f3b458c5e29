"""All events of a replay in one order, on disk, divided among publishers.

A plan is identified by its inputs: the files, their sizes and times, the names of columns, the
number of publishers, the brokers, whether events carry their origin, and the user's `run` name. So
the same request resumes the same plan, and no other request does. No partial plan is left behind. A
replay that was begun from a source that has changed since is reported.

    WORK/MARK/part-….parquet   the events
    WORK/MARK/_plan.json       the note: the plan is complete, with hashes of its files
    WORK/MARK/_begun           something may have been published
    WORK/MARK/_done            everything was published, and how much
    WORK/MARK.lock             locked by the process that makes or publishes the plan
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from motet.errors import MisuseError, StorageError
from motet.spark.failures import brief, is_foreign
from motet.spark.output_folder import locked
from motet.spark.replay.files import files_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from motet.spark.archive.manifest import Version


NOTE: Final = "_plan.json"
BEGUN: Final = "_begun"
DONE: Final = "_done"
MARK_CHARS: Final = 12
BATCH_ROWS: Final = 4096
FORMAT: Final = 2
PREFIX: Final = "_"
"""Columns of the plan itself begin like this; no attribute does."""
PACKED, PAYLOAD = "_packed", "_payload"


class PlanPart(Struct, frozen=True):
    """A file of a plan."""

    name: str
    rows: int
    sha256: str


class PlanOrigin(Struct, frozen=True):
    """The inputs that identify a plan."""

    source: str
    files: tuple[tuple[str, int, int], ...]
    """Of a log: paths, sizes in bytes, times of change in nanoseconds."""
    upto: tuple[tuple[str, int], ...]
    """Of an archive: ticks."""
    wish: str
    """A hash of all other parameters."""

    @property
    def mark(self) -> str:
        return mark_of(msgspec.to_builtins(self))


class ReplayPlan(Struct, frozen=True):
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
    made: PlanOrigin
    shares: tuple[int, ...]
    """Number of rows per publisher."""
    parts: tuple[PlanPart, ...]
    remarks: tuple[str, ...] = ()
    """Findings while making the plan that the user should know."""
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
        """Raises `StorageError` unless the files are as they were when the plan was made."""
        there = {path.name for path in Path(self.folder).glob("*.parquet")}
        for name in sorted(there ^ {part.name for part in self.parts}):
            what = "does not belong to this plan" if name in there else "is missing"
            raise StorageError(f"{Path(self.folder, name)} {what}; {_way_out(Path(self.folder))}")
        for part in self.parts:
            path = Path(self.folder, part.name)
            if _sha256(path) != part.sha256:
                raise StorageError(
                    f"{path} is damaged, or was changed since the plan was made; "
                    f"{_way_out(Path(self.folder))}"
                )

    # ── progress ─────────────────────────────────────────────────────────────────────────

    def has(self, what: str) -> bool:
        return (Path(self.folder) / what).exists()

    def remember(self, what: str) -> None:
        told = {"mark": self.mark, "rows": self.rows}
        write_whole(Path(self.folder, what), msgspec.json.encode(told))

    @property
    def is_done(self) -> bool:
        """Whether `_done` exists; raises `StorageError` if it is not of this plan."""
        path = Path(self.folder, DONE)
        if not path.exists():
            return False
        try:
            told = msgspec.json.decode(path.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError):
            told = None
        if told != {"mark": self.mark, "rows": self.rows}:
            raise StorageError(
                f"{path} does not confirm that the {self.rows:,} events of this plan were "
                f"published: it is damaged, or belongs to another plan. Remove it and run the same "
                f"command again: it continues after the last event, or reports that its position "
                f"is unknown"
            )
        return True


# ── notes ────────────────────────────────────────────────────────────────────────────────


def noted(
    folder: Path, made: PlanOrigin, publishers: int, kind: str, remarks: tuple[str, ...], rows: int
) -> ReplayPlan | None:
    """The plan of files that have been written; None if they are empty. They must have `rows`
    rows."""
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
        parts.append(PlanPart(path.name, size, _sha256(path)))
    if rows != sum(shares):
        raise StorageError(
            f"{made.source} has {rows:,} events, but Spark has read {sum(shares):,} of them; check "
            f"whether its configuration ignores some files"
        )
    if not ends:
        return None
    if ends != sorted(ends):
        raise StorageError(f"the plan in {folder} is not sorted by time; remove it and try again")
    plan = ReplayPlan(
        str(folder), made.mark, made.source, sum(shares), publishers, ends[0], ends[-1], kind,
        made, tuple(shares), tuple(parts), remarks,
    )  # fmt: skip
    write_whole(folder / NOTE, msgspec.json.encode(plan))
    return plan


def found(folder: Path, made: PlanOrigin) -> ReplayPlan | None:
    """The complete plan in a folder, if there is one."""
    path = folder / NOTE
    if not path.exists():
        if (folder / BEGUN).exists() or (folder / DONE).exists():
            raise StorageError(
                f"{path} is missing, but events of this plan were published; {_way_out(folder)}"
            )
        return None
    plan = read_note(path)
    if plan is None:
        raise StorageError(
            f"{path} is damaged, truncated, or written by another release; {_way_out(folder)}"
        )
    if plan.mark != made.mark or plan.made != made:
        raise StorageError(
            f"{path} is the plan of another replay, of {plan.source}; {_way_out(folder)}"
        )
    return msgspec.structs.replace(plan, folder=str(folder))


def read_note(path: Path) -> ReplayPlan | None:
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=ReplayPlan)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return plan if plan.format == FORMAT else None


def of_the_same_before(work: Path, made: PlanOrigin) -> list[ReplayPlan]:
    """Begun plans of the same request from an earlier state of the source."""
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
    """Lock the plan of this folder during the block; `MisuseError` if another process makes or
    publishes it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.lock")
    problem = (
        f"another process is running the same replay in {folder}; wait until it has ended, or "
        f"publish all events once more with --run NAME"
    )
    with locked(path, problem):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def mark_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:MARK_CHARS]


def write_whole(path: Path, data: bytes) -> None:
    """Write atomically and durably."""
    from motet.spark.archive.manifest import sync_folder, write_durably

    beside = path.with_name(f".{path.name}")
    write_durably(beside, data)
    os.replace(beside, path)
    sync_folder(path.parent)


def _way_out(folder: Path) -> str:
    return (
        f"restore {folder} from a copy, or start again from the first event: with --run NAME, or "
        f"by removing that folder if nothing was published yet"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ── finding or making a plan ─────────────────────────────────────────────────────────────


def prepare(
    spark: SparkSession | None,
    path: Path,
    work: Path,
    *,
    publishers: int = 1,
    names: Mapping[str, str] | None = None,
    brokers: Iterable[str] = (),
    keys: bool = False,
    run: str = "",
    start: Callable[[], SparkSession] | None = None,
) -> ReplayPlan:
    """The plan for a replay: found, or made now. `brokers` and `keys` are those of the replay: with
    other brokers it is another plan. `start` creates a Spark session if `spark` is None and one is
    needed."""
    if publishers < 1:
        raise MisuseError(f"a replay needs at least one publisher, not {publishers}")
    version = _version_of(path)
    if version is not None and names:
        raise MisuseError(
            f"{path} is an archive, whose events are published unchanged; omit --column, which "
            f"applies only to foreign logs"
        )
    wish = mark_of(publishers, sorted((names or {}).items()), sorted(brokers), keys, run)
    made = _made_of(path, wish, version)
    folder = work.absolute() / made.mark
    plan = found(folder, made)
    if plan is not None:
        return plan
    with alone(folder):
        plan = found(folder, made)  # another process may just have finished it
        if plan is not None:
            return plan
        changed = _told_of_changes(work.absolute(), made)
        session = spark or (start() if start is not None else None)
        if session is None:
            raise MisuseError("there is no plan yet, and making it needs a Spark session")
        if folder.exists():
            shutil.rmtree(folder)  # an unfinished plan
        try:
            return _planned(session, path, folder, made, version, publishers, names or {}, changed)
        except Exception as problem:
            shutil.rmtree(folder, ignore_errors=True)
            if is_foreign(problem):
                raise brief(problem) from problem
            raise


def _planned(
    spark: SparkSession, path: Path, folder: Path, made: PlanOrigin, version: Version | None,
    publishers: int, names: Mapping[str, str], remarks: tuple[str, ...],
) -> ReplayPlan:  # fmt: skip
    from motet.spark.replay import logs

    with ExitStack() as held:
        if version is not None:
            frame, rows = logs.of_archive(spark, path, version), version.rows
        else:
            frame, rows, found_so = logs.of_log(spark, path, names, held)
            remarks = (*remarks, *found_so)
        logs.write(frame, folder, publishers)
    if version is None and _made_of(path, made.wish, None) != made:
        raise MisuseError(f"{path} changed while it was read; wait until it is complete")
    kind = "log" if version is None else "archive"
    plan = noted(folder, made, publishers, kind, remarks, rows)
    if plan is None:
        raise MisuseError(f"{path} has no events")
    return plan


def _told_of_changes(work: Path, made: PlanOrigin) -> tuple[str, ...]:
    """Raise rather than publish events again that the user did not ask for again."""
    remarks = []
    for before in of_the_same_before(work, made):
        what = f"{made.source} has changed since its plan {before.folder} was made"
        if made.files and not before.is_done:  # archives grow: nothing to resume
            raise MisuseError(
                f"{what} ({_difference(before.made, made)}), and only a part of that plan was "
                f"published. Restore the source to continue; --run NAME publishes it as it is now, "
                f"from the first event"
            )
        remarks.append(f"{what}: events that were published then are published again")
    return tuple(remarks)


def _difference(old: PlanOrigin, new: PlanOrigin) -> str:
    before = {path: rest for path, *rest in old.files}
    after = {path: rest for path, *rest in new.files}
    for path in sorted(before | after):
        name = Path(path).name
        if path not in after:
            return f"{name} was removed"
        if path not in before:
            return f"{name} is new"
        if before[path][0] != after[path][0]:
            return f"{name} had {before[path][0]:,} bytes and has {after[path][0]:,}"
        if before[path] != after[path]:
            return f"{name} was rewritten"
    return "the archive has grown"


def _version_of(path: Path) -> Version | None:
    """The version of an archive, fixed now because the archive may grow; None: a log."""
    from motet.spark.archive.manifest import Manifest, is_archive

    return Manifest(path).newest() if is_archive(path) else None


def _made_of(path: Path, wish: str, version: Version | None) -> PlanOrigin:
    source = str(path.absolute())
    if version is not None:  # compaction changes its number, but no event
        return PlanOrigin(
            source, (), tuple(sorted(version.upto.items())), mark_of(wish, version.filter)
        )
    files = tuple(
        (str(each.absolute()), each.stat().st_size, each.stat().st_mtime_ns)
        for each in files_in(path)[1]
    )
    return PlanOrigin(source, files, (), wish)
