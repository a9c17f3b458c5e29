"""The files of a log, and things done behind what was appended."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.errors import DiskFailed
from motet.runtime.log import Extent
from motet.testing.clock import Agenda
from motet.testing.log import SimulatedLog
from tests.unit.log.ground import open_log, segments


def test_extents_are_the_files_and_what_is_in_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = segments(tmp_path)[0]
    assert log.extents == (Extent(first, 1, 0),)
    log.append([b"a", b"b"])
    log.roll()
    log.append([b"c"])
    log.roll()
    log.sync()
    one, two, three = segments(tmp_path)
    wanted = (Extent(one, 1, 2), Extent(two, 3, 3), Extent(three, 4, 3))
    assert log.extents == wanted
    log.shut()
    log = open_log(tmp_path)
    assert log.extents == wanted
    log.trim(2)
    log.append([b"d"])
    log.sync()
    assert log.extents == (Extent(two, 3, 3), Extent(three, 4, 4))
    log.shut()


def test_simulated_extents_are_the_same() -> None:
    log = SimulatedLog(Agenda(), lambda: 1.0)
    log.append([b"a", b"b"])
    log.roll()
    log.roll()
    log.append([b"c"])
    log.roll()
    assert [each[1:] for each in log.extents] == [(1, 2), (3, 3), (4, 3)]
    log.sync()
    log.trim(2)
    log.append([b"d"])
    log.roll()
    assert [each[1:] for each in log.extents] == [(3, 3), (4, 4), (5, 4)]
    log.crash(3)
    assert [each[1:] for each in log.extents] == [(3, 3), (4, 3)]


def test_an_action_comes_behind_what_was_appended(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    seen = []
    for number in range(1, 20):
        log.append([b"%d" % number])
        log.then(lambda: seen.append(log.durable))
    log.sync()
    assert seen == sorted(seen)
    assert all(durable >= number for number, durable in enumerate(seen, 1))
    log.shut()


def test_an_action_that_fails_fails_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([b"a"])

    def fail() -> None:
        raise OSError(28, "No space left on device")

    log.then(fail)
    with pytest.raises(DiskFailed, match="No space left on device"):
        log.sync()
    assert log.durable == 1
    with pytest.raises(DiskFailed):
        log.append([b"b"])
    log.shut()
