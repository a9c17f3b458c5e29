"""Staged rows in files: appended once, found again, gone when nobody needs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import Raw

from motet.errors import LogCorrupted, StagingLost
from motet.model import decode_attributes, encode_event
from motet.protocol.sinks.messages import Attempt, StagedPart
from motet.protocol.sinks.state import Batch, StagedBlock
from motet.runtime.staging import Staging

BATCH = Batch("levels", "q", 3)


def attempt(name: str = "a", partition: int = 0, epoch: int = 3) -> Attempt:
    return Attempt("levels", "q", epoch, partition, name)


def rows(*ns: int) -> list[Raw]:
    return [Raw(encode_event({"n": n}, b"")) for n in ns]


def block(*parts: StagedPart) -> StagedBlock:
    count = sum(part.rows for part in parts)
    return StagedBlock("levels/q/3", "levels", "A.1", "q", 3, 100, count, parts)


def copied(staging: Staging, of: StagedBlock, at: int = 0) -> list[int]:
    found: list[int] = []
    while at + len(found) < of.rows:
        bodies = staging.rows(of, at + len(found))
        found += [decode_attributes(body)["n"] for body in bodies]  # type: ignore[misc]
    return found


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path / "staging")


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "staging").rglob("*.rows"))


def test_pieces_are_found_again_from_any_row(staging: Staging) -> None:
    for index in range(3):
        staging.add(attempt(), index, rows(2 * index, 2 * index + 1))
    staging.add(attempt("b", 1), 0, rows(6))
    parts = staging.seal(attempt(), 3), staging.seal(attempt("b", 1), 1)
    staging.check(BATCH, parts)
    for at in range(7):
        assert copied(staging, block(*parts), at) == list(range(at, 7))


def test_a_piece_that_is_sent_again_changes_nothing(staging: Staging) -> None:
    for index in (0, 0, 1, 0, 1):
        staging.add(attempt(), index, rows(index))
    part = staging.seal(attempt(), 2)
    assert staging.seal(attempt(), 2) == part, "nor does a second seal"
    assert copied(staging, block(part)) == [0, 1]


def test_an_attempt_goes_on_after_a_restart(tmp_path: Path, staging: Staging) -> None:
    staging.add(attempt(), 0, rows(0, 1))
    staging.add(attempt(), 1, rows(2))
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes() + b"half of a piece")
    later = Staging(tmp_path / "staging")
    later.add(attempt(), 2, rows(3))
    part = later.seal(attempt(), 3)
    assert copied(later, block(part)) == [0, 1, 2, 3]


def test_staged_rows_lost_in_a_power_failure_are_reported(tmp_path: Path, staging: Staging) -> None:
    staging.add(attempt(), 0, rows(0))
    staging.add(attempt(), 1, rows(1))
    (path,) = files(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    later = Staging(tmp_path / "staging")
    with pytest.raises(StagingLost, match="only 1 before"):
        later.add(attempt(), 2, rows(2))
    with pytest.raises(StagingLost, match="has sent 2 pieces, and 1"):
        later.seal(attempt(), 2)


def test_damage_is_found_before_a_commit_and_stops_what_is_behind_it(
    tmp_path: Path, staging: Staging
) -> None:
    for index in range(3):
        staging.add(attempt(), index, rows(index))
    part = staging.seal(attempt(), 3)
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StagingLost, match="of 3 rows, 1 are whole"):
        staging.check(BATCH, [part])
    with pytest.raises(LogCorrupted, match="committed"):
        copied(staging, block(part))
    path.unlink()
    with pytest.raises(StagingLost, match="cannot be read"):
        staging.check(BATCH, [part])
    with pytest.raises(LogCorrupted, match="No such file"):
        copied(staging, block(part))


def test_staging_files_stay_in_their_folder_whatever_their_names(
    tmp_path: Path, staging: Staging
) -> None:
    wild = Attempt("../../up", "../..", 0, 0, "/etc/x")
    staging.add(wild, 0, rows(1))
    staging.seal(wild, 1)
    (path,) = files(tmp_path)
    assert path.resolve().is_relative_to(tmp_path / "staging")


def test_dropping_a_batch_leaves_others_alone(tmp_path: Path, staging: Staging) -> None:
    for epoch in (2, 3, 4):
        staging.add(attempt(epoch=epoch), 0, rows(epoch))
    assert staging.drop(BATCH) == 1
    assert len(files(tmp_path)) == 2
    assert staging.drop(BATCH) == 0
    staging.add(attempt(), 0, rows(3))
    assert staging.drop(BATCH, before=True) == 2
    assert [path.name[0] for path in files(tmp_path)] == ["4"]


def test_staged_files_that_are_never_committed_are_swept(tmp_path: Path, staging: Staging) -> None:
    for epoch in (3, 4, 5):
        staging.add(attempt(epoch=epoch), 0, rows(epoch))
    old, needed, young = files(tmp_path)
    for path in (old, needed):
        os.utime(path, (1.0, 1.0))
    assert staging.sweep({BATCH._replace(epoch=4)}, before_s=1000.0) == 1
    assert files(tmp_path) == [needed, young]
