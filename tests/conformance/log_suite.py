"""What every log must do. Subclass `LogSuite` and say how to make one, and how it crashes."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from motet.errors import ClosedError, DiskFailed, LogTrimmed, MisuseError
from motet.runtime.log import Log, Record
from tests.waiting import eventually


class Stand(ABC):
    """One log and what can happen to it."""

    log: Log

    @abstractmethod
    async def settle(self) -> None:
        """Return when everything asked for so far is done."""

    @abstractmethod
    async def reopen(self) -> None:
        """Close in order, and open again."""

    @abstractmethod
    async def crash(self) -> None:
        """The process dies now; another one opens the log."""

    @abstractmethod
    def break_disk(self) -> None:
        """The next sync fails."""

    @abstractmethod
    def roll(self) -> None:
        """Let what is appended so far be trimmed apart from what comes."""

    @abstractmethod
    async def clean(self) -> None: ...


class Watcher:
    """Writes down what a log says, and where."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.positions: list[int] = []
        self.failures: list[Exception] = []
        self.threads: set[int] = set()
        log.watch(self.durable, self.failed)

    def durable(self) -> None:
        self.threads.add(threading.get_ident())
        self.positions.append(self._log.durable)

    def failed(self, error: Exception) -> None:
        self.threads.add(threading.get_ident())
        self.failures.append(error)


def words(first: int, last: int) -> list[bytes]:
    return [b"record %d" % number for number in range(first, last + 1)]


def as_records(first: int, last: int) -> list[Record]:
    return [Record(number, 0, word) for number, word in enumerate(words(first, last), start=first)]


class LogSuite:
    def stand(self, folder: Path) -> Stand:
        raise NotImplementedError

    @pytest.fixture
    async def at(self, tmp_path: Path):  # type: ignore[no-untyped-def]
        stand = self.stand(tmp_path)
        yield stand
        await stand.clean()

    async def test_a_new_log_is_empty(self, at: Stand) -> None:
        assert (at.log.first, at.log.appended, at.log.durable) == (1, 0, 0)
        assert list(at.log.read(1)) == []

    async def test_records_come_back_in_order_with_their_kinds(self, at: Stand) -> None:
        assert at.log.append([b"a", b""]) == 2
        assert at.log.append([b"\0" * 2000, b"\xff" * 700], kind=15) == 4
        assert at.log.append([]) == 4
        assert at.log.append([b"end\0"], 7) == 5
        await at.settle()
        assert list(at.log.read(1)) == [
            (1, 0, b"a"),
            (2, 0, b""),
            (3, 15, b"\0" * 2000),
            (4, 15, b"\xff" * 700),
            (5, 7, b"end\0"),
        ]
        assert at.log.durable == at.log.appended == 5

    async def test_durable_never_passes_appended_and_never_falls(self, at: Stand) -> None:
        watcher = Watcher(at.log)
        for number in range(1, 200):
            position = at.log.append(words(number, number))
            assert position == at.log.appended == number
            assert at.log.durable <= at.log.appended
            if number % 20 == 0:
                await at.settle()
                assert at.log.durable == number
        await at.settle()
        await eventually(lambda: bool(watcher.positions) and watcher.positions[-1] == 199)
        assert watcher.positions == sorted(watcher.positions)
        assert not watcher.failures

    async def test_the_watcher_is_called_on_the_event_loop(self, at: Stand) -> None:
        watcher = Watcher(at.log)
        at.log.append(words(1, 3))
        await at.settle()
        await eventually(lambda: bool(watcher.positions))
        assert watcher.threads == {threading.get_ident()}

    async def test_only_durable_records_are_read(self, at: Stand) -> None:
        at.log.append(words(1, 50))
        seen = at.log.durable
        found = list(at.log.read(1))
        assert seen <= len(found) <= at.log.durable
        assert found == as_records(1, len(found))
        await at.settle()
        assert list(at.log.read(1)) == as_records(1, 50)

    async def test_ranges_include_both_ends(self, at: Stand) -> None:
        for begin in range(1, 300, 7):
            at.log.append(words(begin, begin + 6))
            if begin % 5 == 0:
                at.roll()
        await at.settle()
        end = at.log.appended
        for first in (1, 2, 7, 8, 100, 155, end - 1, end):
            for last in (first - 1, first, first + 1, first + 40, end, end + 9):
                assert list(at.log.read(first, last)) == as_records(first, min(last, end))
            assert list(at.log.read(first)) == as_records(first, end)
        assert list(at.log.read(end + 1)) == []
        assert list(at.log.read(end + 5, end + 9)) == []

    async def test_reading_before_the_first_record_is_misuse(self, at: Stand) -> None:
        with pytest.raises(MisuseError, match="count from 1"):
            at.log.read(0)

    async def test_kinds_of_the_log_are_not_for_users(self, at: Stand) -> None:
        for kind in (-1, 16, 255):
            with pytest.raises(MisuseError, match="kind"):
                at.log.append([b"x"], kind)
        assert at.log.appended == 0

    async def test_appended_records_do_not_change_with_the_caller_s_list(self, at: Stand) -> None:
        mine = words(1, 3)
        at.log.append(mine)
        mine.clear()
        await at.settle()
        assert list(at.log.read(1)) == as_records(1, 3)

    # ── trimming ─────────────────────────────────────────────────────────────────────────

    async def test_trimming_keeps_what_comes_behind(self, at: Stand) -> None:
        at.log.append(words(1, 10))
        at.roll()
        at.log.append(words(11, 20))
        at.roll()
        at.log.append(words(21, 30))
        await at.settle()
        at.log.trim(10)
        await at.settle()
        assert at.log.first == 11
        assert list(at.log.read(11)) == as_records(11, 30)
        with pytest.raises(LogTrimmed, match=r"record 10 .*11"):
            at.log.read(10)
        at.log.trim(10)
        at.log.trim(3)
        await at.settle()
        assert at.log.first == 11

    async def test_trimming_may_keep_more_but_never_less(self, at: Stand) -> None:
        for begin in range(1, 100, 10):
            at.log.append(words(begin, begin + 9))
            at.roll()
        await at.settle()
        for upto in (0, 5, 17, 42, 43, 77):
            at.log.trim(upto)
            await at.settle()
            assert at.log.first <= upto + 1
            assert list(at.log.read(at.log.first)) == as_records(at.log.first, 100)
        assert at.log.first > 1

    async def test_a_log_trimmed_to_nothing_goes_on_counting(self, at: Stand) -> None:
        at.log.append(words(1, 10))
        at.roll()
        await at.settle()
        at.log.trim(10)
        await at.settle()
        assert (at.log.first, at.log.appended) == (11, 10)
        assert list(at.log.read(11)) == []
        for again in (at.reopen, at.crash):
            await again()
            assert (at.log.first, at.log.appended, at.log.durable) == (11, 10, 10)
        assert at.log.append(words(11, 12)) == 12
        await at.settle()
        assert list(at.log.read(11)) == as_records(11, 12)

    # ── endings ──────────────────────────────────────────────────────────────────────────

    async def test_closing_makes_everything_durable(self, at: Stand) -> None:
        at.log.append(words(1, 500))
        await at.reopen()
        assert (at.log.appended, at.log.durable) == (500, 500)
        assert list(at.log.read(1)) == as_records(1, 500)

    async def test_numbers_go_on_after_reopening(self, at: Stand) -> None:
        end = 0
        for _ in range(5):
            assert at.log.append(words(end + 1, end + 3)) == end + 3
            end += 3
            await at.reopen()
        assert list(at.log.read(1)) == as_records(1, end)

    async def test_a_crash_keeps_a_prefix_with_everything_durable(self, at: Stand) -> None:
        for _ in range(5):
            first = at.log.appended + 1
            at.log.append(words(first, first + 9))
            await at.settle()
            at.log.append(words(first + 10, first + 400))
            durable, appended = at.log.durable, at.log.appended
            assert durable >= first + 9
            await at.crash()
            assert durable <= at.log.durable == at.log.appended <= appended
            assert list(at.log.read(1)) == as_records(1, at.log.appended)

    async def test_an_abandoned_log_refuses_and_lets_another_one_in(self, at: Stand) -> None:
        at.log.append(words(1, 3))
        await at.settle()
        at.log.append(words(4, 5))
        await at.log.abandon()
        await at.log.abandon()
        with pytest.raises(ClosedError):
            at.log.append([b"no"])
        await at.reopen()
        assert list(at.log.read(1))[:3] == as_records(1, 3)
        assert at.log.append([b"on"]) == at.log.appended

    async def test_a_closed_log_refuses(self, at: Stand) -> None:
        at.log.append(words(1, 2))
        await at.log.close()
        await at.log.close()
        for refused in (lambda: at.log.append([b"x"]), lambda: at.log.trim(1)):
            with pytest.raises(ClosedError):
                refused()

    # ── failure ──────────────────────────────────────────────────────────────────────────

    async def test_a_failed_sync_is_final(self, at: Stand) -> None:
        at.log.append(words(1, 5))
        await at.settle()
        watcher = Watcher(at.log)
        at.break_disk()
        at.log.append(words(6, 8))
        with pytest.raises(DiskFailed):
            await at.settle()
        await eventually(lambda: bool(watcher.failures))
        assert isinstance(watcher.failures[0], DiskFailed)
        assert (at.log.durable, at.log.appended) == (5, 8)
        assert list(at.log.read(1)) == as_records(1, 5)
        for _ in range(2):
            with pytest.raises(DiskFailed):
                at.log.append(words(9, 9))
            with pytest.raises(DiskFailed):
                at.log.trim(1)
        with pytest.raises(DiskFailed):
            await at.log.close()
        await asyncio.sleep(0)
        assert len(watcher.failures) == 1
        assert watcher.threads == {threading.get_ident()}
        assert at.log.durable == 5

    async def test_a_late_watcher_is_told_of_an_earlier_disk_failure(self, at: Stand) -> None:
        at.break_disk()
        at.log.append(words(1, 1))
        with pytest.raises(DiskFailed):
            await at.settle()
        watcher = Watcher(at.log)
        with pytest.raises(DiskFailed):
            await at.settle()
        await eventually(lambda: bool(watcher.failures))
        assert len(watcher.failures) == 1
