"""One process at a time runs an overlay in a folder; a failed start leaves no needless files."""

from __future__ import annotations

from pathlib import Path

import pytest

import motet
from motet.broker.folder.recovery import open_folder
from motet.errors import UnavailableError
from motet.fleet.run_folder import (
    CHOICE,
    LOCK,
    FolderError,
    Leftovers,
    RunFolder,
    changing,
    choose,
    running,
)
from motet.protocol.config import BrokerConfig


async def test_a_failed_start_removes_only_new_files(tmp_path: Path) -> None:
    (tmp_path / "B1").mkdir()
    (tmp_path / "B2.log").write_text("before\n")
    leftovers = Leftovers(tmp_path, ["B1", "B2", "B3"])
    (tmp_path / "B1.log").write_text("new\n")
    opened = open_folder(BrokerConfig("B3"), tmp_path / "B3")
    await opened.journal.close()
    (tmp_path / "topology.toml").write_text("")
    said = leftovers.remove(UnavailableError("B1 did not want to"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["B1", "B2.log"]
    assert said.endswith("are removed")


def test_a_failed_start_keeps_the_file_that_its_error_names(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    leftovers = Leftovers(folder, ["B1"])
    folder.mkdir(parents=True)
    (folder / "B1.log").write_text("Segmentation fault\n")
    (folder / LOCK).touch()
    said = leftovers.remove(UnavailableError(f"B1: ended with SIGSEGV; see {folder / 'B1.log'}"))
    assert [path.name for path in folder.iterdir()] == ["B1.log"]
    assert f"kept: {folder / 'B1.log'}" in said


async def test_a_folder_that_a_client_has_used_stays(tmp_path: Path) -> None:
    leftovers = Leftovers(tmp_path, ["B1"])
    async with motet.local(brokers=1, data=tmp_path) as overlay, overlay.connect("alice") as alice:
        await alice.advertise("x = 1")
        await alice.publish({"x": 1})
    assert "(a client has used it)" in leftovers.remove(UnavailableError("no links"))
    assert (tmp_path / "B1").is_dir()


def test_a_lock_that_was_removed_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that fails removes its lock; one that has just opened it must check again."""
    folder, tried = RunFolder(tmp_path), []
    lock = RunFolder._try_lock

    def race(self: RunFolder) -> object:
        if not tried:
            monkeypatch.setattr("fcntl.flock", lambda *_: (tmp_path / LOCK).unlink())
        else:
            monkeypatch.undo()
        tried.append(lock(self))
        return tried[-1]

    monkeypatch.setattr(RunFolder, "_try_lock", race)
    folder.claim()
    assert tried[0] is None
    assert len(tried) == 2
    assert (tmp_path / LOCK).exists()
    folder.release()


def test_one_overlay_runs_in_a_folder_and_says_how_far_it_is(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="no overlay is running"):
        running(tmp_path)
    folder = RunFolder(tmp_path)
    folder.claim()
    assert running(tmp_path)["state"] == "starting"
    folder.advance()
    folder.advance("B4 still has clients")
    told = running(tmp_path)
    assert (told["generation"], told["state"], told["error"]) == (2, "up", "B4 still has clients")
    with pytest.raises(FolderError, match=f"running in .* already .pid {told['pid']}"):
        RunFolder(tmp_path).claim()
    folder.release()
    with pytest.raises(FolderError, match="no overlay is running"):
        running(tmp_path)


def test_files_of_a_killed_overlay_are_not_a_running_overlay(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text('{"pid": 1, "generation": 1, "state": "up", "error": ""}')
    (tmp_path / "up.lock").touch()
    with pytest.raises(FolderError, match="no overlay is running"):
        running(tmp_path)


def test_one_command_at_a_time_changes_an_overlay(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="no overlay is running"), changing(tmp_path):
        pass
    folder = RunFolder(tmp_path)
    folder.claim()
    another = pytest.raises(FolderError, match="another command is changing the overlay")
    with changing(tmp_path), another, changing(tmp_path):
        pass
    with changing(tmp_path):
        pass
    folder.release()


def test_brokers_are_chosen_for_one_restart(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim()
    assert folder.chosen() == []
    choose(tmp_path, ["B2"])
    assert folder.chosen() == ["B2"]
    assert folder.chosen() == []
    choose(tmp_path, ["B2"])
    choose(tmp_path, [])
    assert folder.chosen() == []
    choose(tmp_path, ["B2"])
    folder.release()
    assert not (tmp_path / CHOICE).exists()
