"""Folders that are filled from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.errors import MisuseError
from motet.spark.filling import MARK, filling


def test_what_was_begun_and_not_finished_is_begun_anew(tmp_path: Path) -> None:
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


def test_what_is_finished_or_somebodys_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = "has something in it already; try elsewhere"
    with pytest.raises(MisuseError, match=said), filling(tmp_path, "try elsewhere"):
        pass
    with pytest.raises(MisuseError, match="is not a folder"), filling(tmp_path / "file"):
        pass
    assert (tmp_path / "file").exists()


def test_two_do_not_fill_the_same(tmp_path: Path) -> None:
    with filling(tmp_path):
        (tmp_path / "mine").touch()
        with pytest.raises(MisuseError, match="somebody else fills"), filling(tmp_path):
            pass
        assert (tmp_path / "mine").exists()
