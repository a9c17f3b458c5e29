"""Who may open a folder, and what they are told if not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from motet.errors import (
    LogCorrupted,
    LogInUse,
    LogTrimmed,
    MisuseError,
    StorageError,
    WrittenByAnotherVersion,
)
from motet.runtime.log import FileLog, inspect
from motet.runtime.log.layout import FORMAT, HEADER, U32, crc32
from tests.unit.log.ground import PURPOSE, VERSION, build, contents, mended, open_log, segments

HOLDER = """
import sys
import threading
from pathlib import Path
from motet.runtime.log import FileLog
log = FileLog.open(Path(sys.argv[1]), purpose="journal", version=3)
log.append([b"first", b"second"])
log.sync()
print("ready", flush=True)
log.append([b"third"] * 1000)
sys.stdin.read()
"""


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(LogInUse, match=f"in use by process {holder.pid};") as caught:
            open_log(tmp_path / "log")
        assert str(tmp_path / "log") in str(caught.value)
        assert contents(tmp_path / "log")[:2] == [b"first", b"second"], "looking needs no lock"
    finally:
        holder.kill()
        holder.communicate()
    found, _ = mended(tmp_path / "log")
    assert found == [b"first", b"second", *[b"third"] * (len(found) - 2)]


def test_the_same_process_twice(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    with pytest.raises(LogInUse, match=f"process {os.getpid()}"):
        open_log(tmp_path / "log")
    log.shut()
    open_log(tmp_path / "log").shut()


def test_a_log_that_cannot_be_opened_holds_no_lock(tmp_path: Path) -> None:
    build(tmp_path / "log", [[b"x"]])
    segments(tmp_path / "log")[0].write_bytes(b"nonsense")
    for _ in range(2):
        with pytest.raises(LogCorrupted, match="header is cut short"):
            open_log(tmp_path / "log")


def test_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="file"):
            open_log(path)
        with pytest.raises(StorageError, match="file"):
            inspect(path)


def test_a_folder_that_cannot_be_written() -> None:
    """Not even by root: the kernel's own folder takes no files."""
    with pytest.raises(StorageError, match=r"/proc/.*cannot be created; name another"):
        open_log(Path("/proc/self/task"))
    with pytest.raises(StorageError, match="/proc/motet"):
        open_log(Path("/proc/motet"))


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "log", [[b"x"]])
    real = os.open

    def read_only(path: os.PathLike[str] | str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(30, os.strerror(30), str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(StorageError, match="Read-only file system"):
        open_log(tmp_path / "log")
    assert contents(tmp_path / "log") == [b"x"]


def test_opening_a_missing_log_for_reading_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere does not exist"):
        open_log(tmp_path / "nowhere", writable=False)
    with pytest.raises(StorageError, match="no log in"):
        open_log(tmp_path, writable=False)
    assert inspect(tmp_path) == []


def test_opening_a_log_for_reading_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    build(folder, [[b"x"], [b"y" * 50]])
    (path,) = segments(folder)
    path.write_bytes(path.read_bytes()[:-3])
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    log = open_log(folder, writable=False)
    assert (log.durable, log.cut_bytes > 0) == (1, True)
    for refused in (lambda: log.append([b"z"]), log.roll, log.sync, lambda: log.trim(1)):
        with pytest.raises(MisuseError, match="reading only"):
            refused()
    log.shut()
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def test_reading_while_another_process_writes(tmp_path: Path) -> None:
    """Every look finds a gapless stretch that goes at least to what was durable before it."""
    log = open_log(tmp_path / "log", 2000)
    is_done = threading.Event()

    def write() -> None:
        for number in range(1, 1500):
            log.append([b"%d" % (2 * number - 1), b"%d" % (2 * number)])
            if number % 7 == 0:
                log.sync()
            if number % 100 == 0:
                log.trim(2 * number - 50)
        is_done.set()

    writing = threading.Thread(target=write)
    writing.start()
    looks = 0
    while not is_done.is_set():
        durable = log.durable
        seen = open_log(tmp_path / "log", writable=False)
        try:
            found = [int(record.payload) for record in seen.read(seen.first)]
        except LogTrimmed:
            continue
        assert found == list(range(seen.first, seen.durable + 1))
        assert seen.durable >= durable
        looks += 1
    writing.join()
    log.shut()
    assert looks > 0
    assert contents(tmp_path / "log")[-1] == b"2998"


def test_a_log_with_another_purpose_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "log", [[b"x"]])
    with pytest.raises(LogCorrupted, match="'journal', not for 'pubend'"):
        FileLog.open(tmp_path / "log", purpose="pubend", version=VERSION)
    with pytest.raises(MisuseError):
        FileLog.open(tmp_path / "log", purpose="", version=VERSION)


def test_records_of_another_version(tmp_path: Path) -> None:
    build(tmp_path / "log", [[b"x"]])
    for writable in (True, False):
        with pytest.raises(WrittenByAnotherVersion, match=r"version 3 .* version 4") as caught:
            FileLog.open(tmp_path / "log", purpose=PURPOSE, version=4, writable=writable)
        assert f"`motet journal snapshot {tmp_path / 'log'}`" in str(caught.value)
    assert contents(tmp_path / "log") == [b"x"]


def test_an_emptied_log_of_another_version_is_taken_over(tmp_path: Path) -> None:
    build(tmp_path / "log", [[b"x"], [b"y"]])
    log = open_log(tmp_path / "log")
    log.roll()
    log.trim(2)
    log.shut()
    for _ in range(2):
        log = FileLog.open(tmp_path / "log", purpose=PURPOSE, version=4)
        assert (log.first, log.appended) == (3, 2)
        log.shut()
    log = FileLog.open(tmp_path / "log", purpose=PURPOSE, version=4)
    assert log.append([b"new"]) == 3
    log.shut()
    with pytest.raises(WrittenByAnotherVersion, match=r"version 4 .* version 3"):
        open_log(tmp_path / "log")


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "log", [[b"x"]])
    (path,) = segments(tmp_path / "log")
    data = path.read_bytes()
    fields = list(HEADER.unpack_from(data))
    fields[1] = FORMAT + 1
    head = HEADER.pack(*fields)
    path.write_bytes(head + U32.pack(crc32(head)) + data[len(head) + 4 :])
    with pytest.raises(WrittenByAnotherVersion, match=f"format {FORMAT + 1}"):
        open_log(tmp_path / "log")
    assert "format" in inspect(tmp_path / "log")[0].problem


def test_a_trimming_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    build(folder, [[b"a"], [b"b"], [b"c"]], segment_bytes=70)
    kept = {path: path.read_bytes() for path in segments(folder)}
    assert len(kept) == 3
    log = open_log(folder)
    log.trim(2)
    log.shut()
    assert len(segments(folder)) == 1
    for path, data in kept.items():
        path.write_bytes(data)
    assert contents(folder) == [b"c"]
    assert mended(folder)[0] == [b"c"]
    assert len(segments(folder)) == 1
