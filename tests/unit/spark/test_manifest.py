"""Versions of an archive: complete or absent, each number once, no file taken from a reader."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motet.errors import MisuseError, StorageError
from motet.spark.archive import ingestion, manifest
from motet.spark.archive.ingestion import check
from motet.spark.archive.manifest import (
    EVENTS,
    KEPT_VERSIONS,
    STAGING,
    VERSIONS,
    ArchiveFile,
    Manifest,
    is_archive,
)


def file(name: str, rows: int = 1) -> ArchiveFile:
    return ArchiveFile(f"{EVENTS}/{name}", "2026-01-02", "B1.1", rows, 10, 1, rows)


def written(folder: Path, name: str, rows: int = 1) -> ArchiveFile:
    path = folder / EVENTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return file(name, rows)


def begun(folder: Path) -> Manifest:
    manifest = Manifest(folder)
    manifest.begin("", (), {"B1.1": 5})
    return manifest


def test_a_manifest_grows_by_versions(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    manifest.append([file("a", 2)], {"B1.1": 9})
    manifest.append([file("b", 3)], {"B2.1": 4})
    found = Manifest(tmp_path).newest()
    assert (found.number, found.rows, dict(found.since)) == (3, 5, {"B1.1": 5})
    assert dict(found.upto) == {"B1.1": 9, "B2.1": 4}
    assert [each.path for each in found.files] == ["events/a", "events/b"]


def test_a_version_never_ends_earlier_than_the_one_before(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    manifest.append([file("a")], {"B1.1": 9, "B2.1": 4})
    assert dict(manifest.append([], {"B1.1": 7, "B2.1": 6}).upto) == {"B1.1": 9, "B2.1": 6}


def test_a_second_writer_continues_an_archive_with_the_same_options(tmp_path: Path) -> None:
    begun(tmp_path).append([file("a")], {"B1.1": 9})
    assert Manifest(tmp_path).begin("", (), {}).number == 2
    with pytest.raises(MisuseError, match="was begun with no filter, not with the filter 'n > 1'"):
        Manifest(tmp_path).begin("n > 1", (), {})
    with pytest.raises(MisuseError, match=r"no `columns`; n:int is new: continue with no"):
        Manifest(tmp_path).begin("", ("n:int",), {})


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    columns = ("level:int", "room:text")
    Manifest(tmp_path).begin("", columns, {})
    assert Manifest(tmp_path).begin("", columns[::-1], {}).columns == columns
    said = (
        "`columns=level:int,room:text`; room:text is missing, n:int is new: continue with `columns"
    )
    with pytest.raises(MisuseError, match=said):
        check(tmp_path, "", ["n : int", "level:int"])
    with pytest.raises(MisuseError, match="column n has no known type"):
        check(tmp_path / "other", "", ["n"])


def test_a_folder_that_is_not_an_archive_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="is not an archive"):
        Manifest(tmp_path).newest()
    with pytest.raises(MisuseError, match="object stores"):
        Manifest(Path("s3a://bucket/archive"))


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    manifest = begun(tmp_path)

    def write(who: str) -> None:
        for number in range(20):
            Manifest(tmp_path).append([file(f"{who}{number}")], {})

    threads = [threading.Thread(target=write, args=(who,)) for who in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = manifest.newest()
    assert found.number == 41
    assert len({each.path for each in found.files}) == len(found.files) == 40


def test_a_compaction_is_seen_whole(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    old = [file("a", 2), file("b", 3)]
    manifest.append(old, {"B1.1": 9})
    with pytest.raises(StorageError, match="changed the number of rows"):
        manifest.replace(old, [file("ab", 4)])
    manifest.append([file("c", 1)], {"B1.1": 10})  # while it is under way
    found = manifest.replace(old, [file("ab", 5)])
    assert [each.path for each in found.files] == ["events/c", "events/ab"]
    assert dict(found.upto) == {"B1.1": 10}
    with pytest.raises(StorageError, match="another process has compacted"):
        manifest.replace(old, [file("again", 5)])


def test_a_writer_that_dies_leaves_nothing_to_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = begun(tmp_path)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", die)
    with pytest.raises(KeyboardInterrupt):
        manifest.append([file("a")], {"B1.1": 9})
    monkeypatch.undo()
    assert manifest.newest().number == 1
    (manifest.folder / "_versions" / ".half.json").write_bytes(b'{"number"')
    assert manifest.newest().number == 1


def test_damage_is_named(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    (tmp_path / "_versions" / "00000001.json").write_bytes(b'{"number": 1')
    with pytest.raises(StorageError, match=r"00000001\.json is damaged"):
        manifest.newest()


def test_two_jobs_cannot_archive_the_same_events(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    manifest.append([file("a")], {"B1.1": 9}, since={})
    with pytest.raises(StorageError, match="another job is archiving into"):
        manifest.append([file("b")], {"B1.1": 9}, since={})
    manifest.append([file("b")], {"B1.1": 12}, since={"B1.1": 9})
    assert manifest.newest().rows == 2


def test_sweeping_takes_what_was_replaced_long_ago(tmp_path: Path) -> None:
    """However many versions have followed since: it counts since when a file is not needed."""
    manifest = begun(tmp_path)
    old = [written(tmp_path, "a"), written(tmp_path, "b")]
    manifest.append(old, {"B1.1": 9})
    for path in (tmp_path / EVENTS).iterdir():
        os.utime(path, (0, 0))
    manifest.replace(old, [written(tmp_path, "ab", rows=2)])
    for _ in range(KEPT_VERSIONS + 1):
        manifest.append([], {"B1.1": 9})
    now_s = time.time()
    assert manifest.sweep(grace_s=3600, now_s=now_s) == 0
    assert manifest.sweep(grace_s=3600, now_s=now_s + 3700) == 2
    assert [path.name for path in (tmp_path / EVENTS).iterdir()] == ["ab"]
    assert manifest.newest().retired == ()
    assert manifest.newest().rows == 2


def test_old_versions_go_and_young_numbers_stay_taken(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    versions = tmp_path / "_versions"
    for _ in range(2 * KEPT_VERSIONS):
        manifest.append([], {"B1.1": 9})
    assert len([*versions.iterdir()]) == 2 * KEPT_VERSIONS + 1
    for path in versions.iterdir():
        os.utime(path, (0, 0))
    manifest.append([], {"B1.1": 9})
    assert len([*versions.iterdir()]) == KEPT_VERSIONS
    assert manifest.newest().number == 2 * KEPT_VERSIONS + 2


def test_sweeping_removes_files_of_a_dead_writer(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    manifest.append([written(tmp_path, "a")], {"B1.1": 9})
    written(tmp_path, "stray")
    staged = tmp_path / STAGING / "x" / "part.parquet"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"x")
    now_s = time.time()
    assert manifest.sweep(grace_s=3600, now_s=now_s) == 0, "its writer may be alive"
    assert manifest.sweep(grace_s=3600, now_s=now_s + 3700) == 1
    assert staged.exists(), "a large batch may take hours"
    assert manifest.sweep(grace_s=3600, now_s=now_s + 100_000) == 1
    assert [path.name for path in (tmp_path / EVENTS).iterdir()] == ["a"]


def test_a_file_that_vanishes_during_a_sweep_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer moves its files from where they are staged, and removes the folder."""
    manifest = begun(tmp_path)
    for name in ("gone", "stays"):
        written(tmp_path, name)
    seen = os.walk

    def walk(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for each in seen(top):
            (tmp_path / EVENTS / "gone").unlink(missing_ok=True)
            yield each

    monkeypatch.setattr(os, "walk", walk)
    assert manifest.sweep(grace_s=3600, now_s=time.time() + 3700) == 1
    assert [*(tmp_path / EVENTS).iterdir()] == []


def test_a_file_named_by_a_version_during_a_sweep_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = begun(tmp_path)
    late = written(tmp_path, "late")
    seen = os.walk

    def walk(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        found = [*seen(top)]
        if top == tmp_path / EVENTS:
            manifest.append([late], {"B1.1": 9})
        yield from found

    monkeypatch.setattr(os, "walk", walk)
    assert manifest.sweep(grace_s=3600, now_s=time.time() + 3700) == 0
    assert (tmp_path / EVENTS / "late").exists()


def test_a_full_disk_leaves_nothing_beside_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = begun(tmp_path)

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[:3])
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(manifest, "write_durably", full)
    with pytest.raises(OSError, match="no space left"):
        archive.append([], {"B1.1": 9})
    assert [path.name for path in (tmp_path / VERSIONS).iterdir()] == ["00000001.json"]


def test_sweeping_takes_halves_of_versions_and_empty_folders(tmp_path: Path) -> None:
    archive = begun(tmp_path)
    half = tmp_path / VERSIONS / ".0123.json"
    half.write_bytes(b"{")
    staged = tmp_path / STAGING / "x" / "day=2026-01-02"
    staged.mkdir(parents=True)
    (tmp_path / STAGING / "y").mkdir()
    (staged / "part.parquet").write_bytes(b"x")
    now_s = time.time()
    assert archive.sweep(grace_s=3600, now_s=now_s) == 0, "its writer may be alive"
    assert archive.sweep(grace_s=3600, now_s=now_s + 3700) == 1
    assert not half.exists()
    assert len([*(tmp_path / STAGING).iterdir()]) == 2
    assert archive.sweep(grace_s=3600, now_s=now_s + 100_000) == 1
    assert [*(tmp_path / STAGING).iterdir()] == []
    assert archive.newest().number == 1


def test_files_with_other_names_are_not_versions(tmp_path: Path) -> None:
    archive = begun(tmp_path)
    for name in ("x.json", "9.json", "00000007", "00000008 (copy).json", "٠٠٠٠٠٠٠٩.json"):
        (tmp_path / VERSIONS / name).write_bytes(b"{}")
    assert archive.newest().number == 1
    assert archive.append([], {"B1.1": 9}).number == 2


def test_folders_that_count_as_an_archive(tmp_path: Path) -> None:
    """Also one without events, and one whose versions are lost: its files are no log."""
    new, lost, other = (tmp_path / name for name in ("new", "lost", "other"))
    begun(new)
    for folder in (lost / VERSIONS, lost / EVENTS, other / VERSIONS):
        folder.mkdir(parents=True)
    (other / VERSIONS / "notes.json").touch()
    found = [each for each in (new, lost, other, tmp_path / "nothing") if is_archive(each)]
    assert found == [new, lost]


def test_brokers_are_named_to_an_archive_as_to_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def brokers(*given: Any) -> Any:
        asked.extend(given)
        raise MisuseError("enough")

    monkeypatch.setattr(ingestion, "Brokers", brokers)
    spark: Any = object()
    with pytest.raises(MisuseError, match="enough"):
        ingestion.keep(spark, "motet://a:1, motet://a:1,", tmp_path, options={"timeout": "5"})
    assert asked == [("motet://a:1",), 5.0]
    with pytest.raises(MisuseError, match="option brokers is missing"):
        ingestion.keep(spark, " ,", tmp_path)
    assert not (tmp_path / VERSIONS).exists()
