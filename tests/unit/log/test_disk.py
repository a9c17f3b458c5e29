"""Disks that are full, and disks that fail."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from motet.errors import DiskFailed, StorageError
from motet.runtime.log import Durability, FileLog, file_log, folder, read_sealed, write_sealed
from motet.runtime.log.folder import CLOSED
from tests.unit.log.ground import build, contents, mended, open_log, segments
from tests.waiting import PATIENCE_S

PARTS = [(0, b"head"), (3, b""), (15, bytes(3000)), (1, b"tail\0")]

FULL = """
import resource, sys
from pathlib import Path
from motet.errors import DiskFailed
from motet.runtime.log import FileLog
log = FileLog.open(Path(sys.argv[1]), purpose="journal", version=3)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
heard = 0
try:
    while True:
        heard = log.append([b"x" * 300] * 7)
        log.sync()
except DiskFailed as error:
    print(log.durable, log.appended)
    print(error)
"""


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The kernel refuses in the middle of a write, as it does when a disk is full."""
    assert resource.RLIMIT_FSIZE is not None
    told = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    durable, appended = map(int, told[0].split())
    assert durable == appended - 7
    assert told[1].startswith(f"{segments(tmp_path / 'log')[0]} could not be written: File too")
    assert f"the records up to {durable} are durable" in told[1]
    assert "make room" in told[1]
    found, cut_bytes = mended(tmp_path / "log")
    assert len(found) == durable
    assert cut_bytes > 0


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.ENOSPC, "make room on the disk"),
        (errno.EIO, "replace the disk"),
        (errno.EMFILE, "allow more open files"),
        (errno.EROFS, "mount the disk writable"),
        (errno.EINVAL, "see to the disk"),
    ],
)
def test_a_segment_that_cannot_be_begun_names_the_reason_and_its_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, way_out: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    log = open_log(tmp_path / "log")
    log.append([b"good"])
    log.sync()
    monkeypatch.setattr(file_log, "create_segment", fail)
    log.roll()
    with pytest.raises(DiskFailed) as caught:
        log.sync()
    assert f"{os.strerror(number)}; the records up to 1 are durable" in str(caught.value)
    assert f"Nothing more is written: {way_out}" in str(caught.value)
    log.shut()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("where", ["write_all", "_fdatasync"])
def test_a_failed_disk_operation_is_never_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    log = open_log(tmp_path / "log")
    log.append([b"good"])
    log.sync()
    calls: list[str] = []

    def fail(*_: object) -> None:
        calls.append(where)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(file_log, where, fail)
        log.append([b"bad"])
        with pytest.raises(DiskFailed, match=os.strerror(number)):
            log.sync()
    size = segments(tmp_path / "log")[0].stat().st_size
    for refused in (lambda: log.append([b"no"]), log.sync, log.roll, lambda: log.trim(1)):
        with pytest.raises(DiskFailed, match=os.strerror(number)):
            refused()
    with pytest.raises(DiskFailed):
        log.shut()
    assert calls == [where]
    assert segments(tmp_path / "log")[0].stat().st_size == size
    assert not (tmp_path / "log" / CLOSED).exists()
    assert contents(tmp_path / "log")[0] == b"good"


@pytest.mark.parametrize("durability", list(Durability))
def test_closing_may_fail_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability
) -> None:
    log = FileLog.open(tmp_path / "log", purpose="journal", version=3, durability=durability)
    log.append([b"a"])
    log.sync()
    log.append([b"b"])

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(file_log.Mark, "write", fail)
        with pytest.raises(DiskFailed, match="No space left"):
            log.shut()
    log.shut()
    assert mended(tmp_path / "log") == ([b"a", b"b"], 0)


@pytest.mark.parametrize("name", ["create_segment", "remove_file", "sync_folder"])
def test_rolling_and_trimming_may_fail_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    log = open_log(tmp_path / "log")
    log.append([b"a"])
    if name != "create_segment":
        log.roll()
        log.append([b"b"])
        log.sync()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(file_log, name, fail)
        log.roll()
        log.trim(1)
        with pytest.raises(DiskFailed, match=str(tmp_path)):
            log.sync()
    log.shut()  # everything appended is durable, and the failure is known
    assert contents(tmp_path / "log")[-1] in (b"a", b"b")
    open_log(tmp_path / "log").shut()


def test_a_disk_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sealed(tmp_path / "snapshot", purpose="snapshot", version=1, first=1, payloads=PARTS)
    log = open_log(tmp_path / "log")
    log.append([b"a"])
    log.sync()

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StorageError, match=r"1\.log cannot be read: Input/output error"):
        list(log.read(1))
    with pytest.raises(StorageError, match="snapshot cannot be read: Input/output error"):
        list(read_sealed(tmp_path / "snapshot", purpose="snapshot"))
    log.shut()


def test_a_new_folder_is_durable_with_all_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(folder, "sync_folder", synced.append)
    open_log(tmp_path / "new" / "newer" / "log").shut()
    assert {tmp_path, tmp_path / "new", tmp_path / "new" / "newer"} <= set(synced)


def test_a_group_waits_for_the_sync_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    gate, entered = threading.Event(), threading.Event()
    write, sync = file_log.write_all, os.fdatasync

    def slow_sync(file: int) -> None:
        entered.set()
        assert gate.wait(PATIENCE_S)
        sync(file)
        events.append("synced")

    def seen_write(file: int, data: bytes) -> None:
        events.append(f"written {data.count(b'record')}")
        write(file, data)

    monkeypatch.setattr(file_log, "_fdatasync", slow_sync)
    monkeypatch.setattr(file_log, "write_all", seen_write)
    log = open_log(tmp_path / "log")
    log.append([b"record"])
    assert entered.wait(PATIENCE_S)
    for _ in range(9):
        log.append([b"record"] * 2)
    assert (log.durable, log.appended) == (0, 19)
    assert events == ["written 1"]
    assert list(log.read(1)) == []
    gate.set()
    log.sync()
    assert events == ["written 1", "synced", "written 18", "synced"]
    assert log.durable == 19
    log.shut()


def test_the_relaxed_mode_syncs_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    monkeypatch.setattr(file_log, "_fdatasync", lambda _: synced.set())
    monkeypatch.setattr(file_log, "MAX_UNSYNCED_S", 0.05)
    log = FileLog.open(
        tmp_path / "log",
        purpose="journal",
        version=3,
        durability=Durability.MAY_LOSE_A_SECOND,
    )
    for _ in range(2):
        log.append([b"x"])
        assert synced.wait(PATIENCE_S)
        synced.clear()
    log.shut()
    assert contents(tmp_path / "log") == [b"x", b"x"]


# ── sealed files ─────────────────────────────────────────────────────────────────────────


def test_a_sealed_file_comes_back_whole(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write_sealed(path, purpose="snapshot", version=7, first=42, payloads=iter(PARTS))
    found = read_sealed(path, purpose="snapshot")
    assert (found.version, found.first) == (7, 42)
    for _ in range(2):
        assert [tuple(record) for record in found] == [
            (42 + at, *part) for at, part in enumerate(PARTS)
        ]
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot"]


def test_every_flip_and_every_cut_of_a_sealed_file_stops(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write_sealed(path, purpose="snapshot", version=7, first=0, payloads=PARTS[:2])
    whole = path.read_bytes()
    others = [whole[:size] for size in range(len(whole))]
    others += [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        for at in range(len(whole))
        for bit in range(8)
    ]
    others.append(whole + b"\0")
    for other in others:
        path.write_bytes(other)
        with pytest.raises(StorageError, match="snapshot"):
            list(read_sealed(path, purpose="snapshot"))


def test_a_snapshot_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    write_sealed(path, purpose="snapshot", version=7, first=1, payloads=PARTS)

    def parts() -> object:
        yield PARTS[0]
        raise ValueError("the broker thought better of it")

    with pytest.raises(ValueError, match="thought better"):
        write_sealed(path, purpose="snapshot", version=7, first=9, payloads=parts())  # type: ignore[arg-type]
    with pytest.raises(DiskFailed, match="could not be written"):
        write_sealed(tmp_path / "no" / "x", purpose="snapshot", version=7, first=9, payloads=PARTS)
    assert read_sealed(path, purpose="snapshot").first == 1
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot"]


def test_a_sealed_file_that_is_not_there(tmp_path: Path) -> None:
    build(tmp_path / "log", [[b"x"]])
    for path in (tmp_path / "nothing", tmp_path / "log"):
        with pytest.raises(StorageError, match=path.name):
            read_sealed(path, purpose="snapshot")
    with pytest.raises(StorageError, match="'journal', not for 'snapshot'"):
        read_sealed(segments(tmp_path / "log")[0], purpose="snapshot")
