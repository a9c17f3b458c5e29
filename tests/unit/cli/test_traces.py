"""An overlay that could not be started leaves nothing behind, but for what somebody may need."""

from __future__ import annotations

from pathlib import Path

import pytest

import motet
from motet.broker.config import BrokerConfig
from motet.broker.recovery import open_folder
from motet.cli.ending import Failure
from motet.cli.running import LOCK, Marker
from motet.cli.traces import Traces


async def test_only_what_is_new_goes(tmp_path: Path) -> None:
    (tmp_path / "B1").mkdir()
    (tmp_path / "B2.log").write_text("before\n")
    traces = Traces(tmp_path, ["B1", "B2", "B3"])
    (tmp_path / "B1.log").write_text("new\n")
    opened = open_folder(BrokerConfig("B3"), tmp_path / "B3")
    await opened.journal.close()
    (tmp_path / "topology.toml").write_text("")
    said = traces.remove(Failure("B1 did not want to"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["B1", "B2.log"]
    assert said.endswith("is removed")


def test_what_the_error_points_at_stays(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    traces = Traces(folder, ["B1"])
    folder.mkdir(parents=True)
    (folder / "B1.log").write_text("Segmentation fault\n")
    (folder / LOCK).touch()
    said = traces.remove(Failure(f"B1: ended with SIGSEGV; see {folder / 'B1.log'}"))
    assert [path.name for path in folder.iterdir()] == ["B1.log"]
    assert f"kept: {folder / 'B1.log'}" in said


async def test_a_folder_that_a_client_has_used_stays(tmp_path: Path) -> None:
    traces = Traces(tmp_path, ["B1"])
    async with motet.local(brokers=1, data=tmp_path) as overlay, overlay.connect("alice") as alice:
        await alice.advertise("x = 1")
        await alice.publish({"x": 1})
    assert "because a client was there" in traces.remove(Failure("no links"))
    assert (tmp_path / "B1").is_dir()


def test_a_lock_that_was_removed_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fails removes its lock: who has opened it a moment before must look again."""
    marker, tried = Marker(tmp_path), []
    lock = Marker._try_lock

    def race(self: Marker) -> object:
        if not tried:
            monkeypatch.setattr("fcntl.flock", lambda *_: (tmp_path / LOCK).unlink())
        else:
            monkeypatch.undo()
        tried.append(lock(self))
        return tried[-1]

    monkeypatch.setattr(Marker, "_try_lock", race)
    marker.claim()
    assert tried[0] is None
    assert len(tried) == 2
    assert (tmp_path / LOCK).exists()
    marker.release()
