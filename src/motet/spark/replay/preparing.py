"""The plan for a replay: found, or made with Spark. Nothing half is left behind, and what was begun
with a source that has changed since is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from motet.errors import MisuseError
from motet.spark.failures import brief, is_foreign
from motet.spark.replay.files import files_in
from motet.spark.replay.plan import Made, Plan, alone, found, mark_of, noted, of_the_same_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from motet.spark.archive.manifest import Version


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
    version = _version_of(path)
    if version is not None and names:
        raise MisuseError(
            f"{path} is an archive, whose events are published as they were; leave --column away: "
            f"it is for logs of others"
        )
    wish = mark_of(publishers, sorted((names or {}).items()), sorted(brokers), keys, run)
    made = _made_of(path, wish, version)
    folder = work.absolute() / made.mark
    plan = found(folder, made)
    if plan is not None:
        return plan
    with alone(folder):
        plan = found(folder, made)  # somebody may just have finished it
        if plan is not None:
            return plan
        changed = _told_of_changes(work.absolute(), made)
        session = spark or (start() if start is not None else None)
        if session is None:
            raise MisuseError("this plan is not made yet, and making it needs a session of Spark")
        if folder.exists():
            shutil.rmtree(folder)  # somebody began to write it, and did not finish
        try:
            return _planned(session, path, folder, made, version, publishers, names or {}, changed)
        except Exception as problem:
            shutil.rmtree(folder, ignore_errors=True)
            if is_foreign(problem):
                raise brief(problem) from problem
            raise


def _planned(
    spark: SparkSession, path: Path, folder: Path, made: Made, version: Version | None,
    publishers: int, names: Mapping[str, str], remarks: tuple[str, ...],
) -> Plan:  # fmt: skip
    from motet.spark.replay import planning

    with ExitStack() as held:
        if version is not None:
            frame, rows = planning.of_archive(spark, path, version), version.rows
        else:
            frame, rows, found_so = planning.of_log(spark, path, names, held)
            remarks = (*remarks, *found_so)
        planning.write(frame, folder, publishers)
    if version is None and _made_of(path, made.wish, None) != made:
        raise MisuseError(f"{path} has changed while it was read; wait until it is whole")
    kind = "log" if version is None else "archive"
    plan = noted(folder, made, publishers, kind, remarks, rows)
    if plan is None:
        raise MisuseError(f"{path} has no events")
    return plan


def _told_of_changes(work: Path, made: Made) -> tuple[str, ...]:
    """To publish some of it again is what nobody wants who did not say so."""
    remarks = []
    for before in of_the_same_before(work, made):
        what = f"{made.source} has changed since {before.folder} was made of it"
        if made.files and not before.is_done:  # archives grow: nobody expects to go on with those
            raise MisuseError(
                f"{what} ({_difference(before.made, made)}), and not all of that was published. "
                f"Put it back as it was to go on; --run NAME publishes what it is now, from the "
                f"first event"
            )
        remarks.append(f"{what}: what was published then is published again")
    return tuple(remarks)


def _difference(old: Made, new: Made) -> str:
    before = {path: rest for path, *rest in old.files}
    after = {path: rest for path, *rest in new.files}
    for path in sorted(before | after):
        name = Path(path).name
        if path not in after:
            return f"{name} is gone"
        if path not in before:
            return f"{name} is new"
        if before[path][0] != after[path][0]:
            return f"{name} had {before[path][0]:,} bytes and has {after[path][0]:,}"
        if before[path] != after[path]:
            return f"{name} was written again"
    return "it goes on further"


def _version_of(path: Path) -> Version | None:
    """Of an archive, which may grow from now on: what is planned is this. None: it is a log."""
    from motet.spark.archive.manifest import Manifest, is_archive

    return Manifest(path).newest() if is_archive(path) else None


def _made_of(path: Path, wish: str, version: Version | None) -> Made:
    source = str(path.absolute())
    if version is not None:  # compaction changes its number, and no event
        return Made(source, (), tuple(sorted(version.upto.items())), mark_of(wish, version.filter))
    files = tuple(
        (str(each.absolute()), each.stat().st_size, each.stat().st_mtime_ns)
        for each in files_in(path)[1]
    )
    return Made(source, files, (), wish)
