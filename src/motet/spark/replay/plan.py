"""All events of a replay in one order, on disk, divided among publishers.

A plan is named by what it is made of, and for whom: the files, their sizes and times, the names of
columns, the number of publishers, the brokers, whether events tell where they are from, and a word
of the user's. So who asks for the same again goes on with the same plan, and nobody else does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from motet.errors import MisuseError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTE: Final = "_plan.json"
BEGUN: Final = "_begun"
DONE: Final = "_done"
MARK_CHARS: Final = 12
BATCH_ROWS: Final = 4096


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

    @property
    def span_s(self) -> float:
        return (self.last_us - self.first_us) / 1e6

    def client_id(self, publisher: int) -> str:
        return f"replay-{self.mark}-{publisher}"

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """All rows, in order."""
        import pyarrow.parquet

        for path in sorted(Path(self.folder).glob("*.parquet")):
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(BATCH_ROWS):
                yield batch.to_pylist()

    def has(self, what: str) -> bool:
        return (Path(self.folder) / what).exists()

    def remember(self, what: str) -> None:
        from motet.spark.archive.manifest import sync_folder, write_durably

        write_durably(Path(self.folder) / what, b"")
        sync_folder(Path(self.folder))


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
) -> Plan:
    """The plan for a replay: made now, or found. `brokers` and `keys` are those of the replay: to
    other brokers it is another one. `start` gives a session of Spark if `spark` is None and one is
    needed."""
    if publishers < 1:
        raise MisuseError(f"a replay needs a publisher; {publishers} are not enough")
    from motet.spark.archive.manifest import VERSIONS

    is_archive = (path / VERSIONS).is_dir()
    wish = [publishers, sorted((names or {}).items()), sorted(brokers), keys, run]
    mark = _mark(_made_of(path, is_archive), wish)
    folder = work.absolute() / mark
    if (folder / NOTE).exists():
        return msgspec.json.decode((folder / NOTE).read_bytes(), type=Plan)
    session = spark or (start() if start is not None else None)
    if session is None:
        raise MisuseError("this plan is not made yet, and making it needs a session of Spark")
    from motet.spark.replay import planning

    if folder.exists():
        shutil.rmtree(folder)  # somebody began to write it, and did not finish
    if is_archive:
        frame = planning.of_archive(session, path)
    else:
        frame = planning.of_log(session, path, names or {})
    planning.write(frame, folder, publishers)
    return _noted(folder, mark, path, publishers, "archive" if is_archive else "log")


def _noted(folder: Path, mark: str, path: Path, publishers: int, kind: str) -> Plan:
    import pyarrow.parquet

    from motet.spark.archive.manifest import write_durably

    rows, ends = 0, []
    for file in sorted(folder.glob("*.parquet")):
        read = pyarrow.parquet.ParquetFile(file)
        rows += read.metadata.num_rows
        if read.metadata.num_rows:
            times = read.read(columns=["_time_us"]).column(0)
            ends += [times[0].as_py(), times[-1].as_py()]
    if not rows:
        raise MisuseError(f"{path} has no events")
    if ends != sorted(ends):
        raise StorageError(f"the plan in {folder} is not in order; remove it and try again")
    plan = Plan(str(folder), mark, str(path), rows, publishers, ends[0], ends[-1], kind)
    write_durably(folder / NOTE, msgspec.json.encode(plan))
    return plan


def _made_of(path: Path, is_archive: bool) -> list[Any]:
    if is_archive:
        from motet.spark.archive.manifest import Manifest

        version = Manifest(path).newest()  # compaction changes its number, and no event
        return [str(path.absolute()), version.filter, sorted(version.upto.items())]
    from motet.spark.replay.logs import files_in

    return [
        [str(each.absolute()), each.stat().st_size, each.stat().st_mtime_ns]
        for each in files_in(path)[1]
    ]


def _mark(*parts: list[Any]) -> str:
    return sha256(json.dumps(parts).encode()).hexdigest()[:MARK_CHARS]
