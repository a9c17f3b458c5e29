"""Folders that are filled from nothing."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import BinaryIO

import pytest

from motet.errors import MisuseError
from motet.spark import output_folder as module
from motet.spark.output_folder import MARK, check_free, filling, locked


def test_an_unfinished_output_folder_is_cleared_by_the_next_writer(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "one"
    begun = filling(folder)
    begun.__enter__()
    (folder / "half").mkdir()
    (folder / "half" / "a").touch()
    (folder / "b").touch()
    begun.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    with filling(folder):
        assert [each.name for each in folder.iterdir()] == [MARK]
        (folder / "whole").touch()
    assert [each.name for each in folder.iterdir()] == ["whole"]


def test_a_finished_or_foreign_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = "is not empty; try elsewhere"
    with pytest.raises(MisuseError, match=said), filling(tmp_path, "try elsewhere"):
        pass
    with pytest.raises(MisuseError, match="is not a folder"), filling(tmp_path / "file"):
        pass
    assert (tmp_path / "file").exists()


def test_two_writers_cannot_fill_the_same_folder(tmp_path: Path) -> None:
    with filling(tmp_path):
        (tmp_path / "mine").touch()
        with pytest.raises(MisuseError, match="another process is writing into"), filling(tmp_path):
            pass
        assert (tmp_path / "mine").exists()


def test_a_folder_that_another_writer_has_just_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given one who finishes between our look at the folder and our lock, then we find that out,
    whether we hold his mark, which is gone, or one of our own."""
    other = filling(tmp_path)
    other.__enter__()
    look = check_free

    def late(folder: Path, advice: str) -> None:
        look(folder, advice)
        (folder / "result").touch()
        other.__exit__(None, None, None)

    monkeypatch.setattr(module, "check_free", late)
    with pytest.raises(MisuseError, match="is not empty"), filling(tmp_path):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["result"]


def test_a_lock_that_its_owner_has_removed_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, taken = tmp_path / "lock", []
    lock = fcntl.flock

    def removed_once(file: BinaryIO, how: int) -> None:
        if not taken:
            path.unlink()
        taken.append(file)
        lock(file, how)

    monkeypatch.setattr(module.fcntl, "flock", removed_once)
    with locked(path, "somebody has it"):
        assert len(taken) == 2
        assert path.exists()
        with pytest.raises(MisuseError, match="somebody has it"), locked(path, "somebody has it"):
            pass
