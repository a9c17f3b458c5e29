"""The log on disk keeps the promises of every log, in both of its durabilities."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from motet.errors import DiskFailed
from motet.runtime.log import Durability, FileLog, file_log
from tests.conformance.log_suite import LogSuite, Stand


def fail(*_: object) -> None:
    raise OSError(5, os.strerror(5))


class FileStand(Stand):
    log: FileLog

    def __init__(self, folder: Path, durability: Durability, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._patch = patch
        self._durability = durability
        self._life = 0
        self._open()

    @property
    def _path(self) -> Path:
        return self._folder / str(self._life)

    def _open(self) -> None:
        self.log = FileLog.open(
            self._path,
            purpose="conformance",
            version=1,
            segment_bytes=4000,
            durability=self._durability,
        )

    async def settle(self) -> None:
        self.log.sync()

    async def reopen(self) -> None:
        await self.log.close()
        self._open()

    async def crash(self) -> None:
        """The thread gets no further, and what is on disk is all that a crash leaves."""
        before, self._life = self._path, self._life + 1
        with pytest.MonkeyPatch.context() as patch:
            for name in ("write_all", "_fdatasync", "create_segment"):
                patch.setattr(file_log, name, fail)
            with contextlib.suppress(DiskFailed):
                while True:
                    self.log.append([b"never written"])
                    self.log.sync()
            shutil.copytree(before, self._path)
            await self.clean()
        self._open()

    def break_disk(self) -> None:
        for name in ("write_all", "_fdatasync"):
            self._patch.setattr(file_log, name, fail)

    def roll(self) -> None:
        self.log.roll()

    async def clean(self) -> None:
        with contextlib.suppress(DiskFailed):
            await self.log.close()


class TestFileLog(LogSuite):
    durability = Durability.FSYNC

    @pytest.fixture(autouse=True)
    def patches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def stand(self, folder: Path) -> Stand:
        return FileStand(folder, self.durability, self.patch)


class TestFileLogThatMayLoseASecond(TestFileLog):
    durability = Durability.MAY_LOSE_A_SECOND
