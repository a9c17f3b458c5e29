"""The streaming job: from the brokers' logs into an archive, each tick once.

What is archived already is known by ticks, from the newest version. So a batch that runs again, or
a query that has lost its checkpoint, adds nothing twice; and a checkpoint that is ahead of its
archive, an older copy perhaps, is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from motet.errors import MisuseError, StorageError
from motet.model import Filter
from motet.spark.archive.frames import DAY, KEPT
from motet.spark.archive.manifest import CHECKPOINT, Manifest, Version
from motet.spark.archive.placing import place
from motet.spark.brokers import Brokers
from motet.spark.columns import KINDS, STREAM
from motet.spark.failures import briefly
from motet.spark.offsets import Vector
from motet.spark.options import Options, options_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger("motet.spark")

EVERY_S: Final = 10.0


def keep(
    spark: SparkSession,
    brokers: str,
    folder: Path,
    *,
    filter: str = "",
    columns: Iterable[str] = (),
    available_now: bool = False,
    every_s: float = EVERY_S,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Begin, or go on. `options` are further ones of the source."""
    manifest = Manifest(folder)
    text, wanted = check(folder, filter, columns)
    asked = options_in({"brokers": brokers, **(options or {})})
    version = manifest.begin(text, wanted, _first_ticks(asked) if not manifest.exists else {})
    checkpoint = manifest.folder / CHECKPOINT
    said = {
        "brokers": brokers,
        "columns": ",".join((*KEPT, *version.columns)),
        "startingPosition": _position(version),
        **({"filter": text} if text else {}),
        **(options or {}),
    }
    frame = spark.readStream.format("motet").options(**said).load()
    keeper = _Keeper(manifest, checkpoint)
    writer = frame.writeStream.foreachBatch(briefly(keeper.take))
    writer = writer.option("checkpointLocation", str(checkpoint)).queryName(f"archive {folder}")
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s:g} seconds").start()


def check(folder: Path, filter: str = "", columns: Iterable[str] = ()) -> tuple[str, list[str]]:
    """Filter and columns as an archive writes them down. `MisuseError` if they cannot be, or if the
    one in this folder has others."""
    text = str(Filter.parse(filter)) if filter else ""
    wanted = [_checked(each) for each in columns]
    Manifest(folder).check(text, wanted)
    return text, wanted


def _checked(written: str) -> str:
    name, _, kind = (part.strip() for part in written.partition(":"))
    if name in STREAM or name == DAY:
        raise MisuseError(f"an archive has a column {name} of its own")
    if kind not in KINDS:
        raise MisuseError(
            f"of which kind is {name}? Write {name}:int, or another of {', '.join(KINDS)}"
        )
    return f"{name}:{kind}"


def _first_ticks(asked: Options) -> Vector:
    brokers = Brokers(asked.brokers, asked.timeout_s)
    try:
        return {name: account.first_tick for name, account in brokers.describe().items()}
    finally:
        brokers.close()


def _position(version: Version) -> str:
    """Where to begin without a checkpoint: behind what is archived."""
    return json.dumps(dict(version.upto)) if version.upto else "earliest"


class _Keeper:
    def __init__(self, manifest: Manifest, checkpoint: Path) -> None:
        self._manifest = manifest
        self._checkpoint = checkpoint

    def take(self, frame: DataFrame, batch: int) -> None:
        """One batch, whole; nothing if it is archived already."""
        there = self._manifest.newest().upto
        end = self._ticks(batch)
        if all(there.get(name, 0) >= tick for name, tick in end.items()):
            return
        self._check_no_gap(batch, there)
        new = [
            ~((F.col("pubend") == name) & (F.col("tick") < tick)) for name, tick in there.items()
        ]
        fresh = frame.where(reduce(lambda one, other: one & other, new)) if new else frame
        dated = fresh.withColumn(DAY, F.to_date("time"))
        self._manifest.append(place(dated, self._manifest.folder), end, there)

    def _check_no_gap(self, batch: int, there: Mapping[str, int]) -> None:
        if batch == 0:
            return
        for name, tick in self._ticks(batch - 1).items():
            if there.get(name, 0) < tick:
                raise StorageError(
                    f"{self._checkpoint} is ahead of its archive: {name} is archived up to tick "
                    f"{there.get(name, 0)}, and the query goes on at {tick}; if the archive was "
                    f"put back from a copy, remove {self._checkpoint}: then it goes on where the "
                    f"archive ends"
                )

    def _ticks(self, batch: int) -> Vector:
        """Where a batch ends, as Spark has written it down before it began."""
        path = self._checkpoint / "offsets" / str(batch)
        found: Any = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        return dict(found["p"])
