"""The journal on a log: what is handed over when, and what happens if the log takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest

from motet.broker.folder.journal import LoggedJournal
from motet.errors import StorageError
from motet.protocol.contract import Fact
from motet.runtime.log import Record


class FakeLog:
    """Remembers what each append brought; durable when told so."""

    first = 1

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.durable = 0
        self.failure: Exception | None = None
        self.is_closed = False
        self.is_abandoned = False

    @property
    def appended(self) -> int:
        return sum(map(len, self.batches))

    def append(self, payloads: Sequence[bytes], kind: int = 0) -> int:
        assert kind == 0
        if self.failure is not None:
            raise self.failure
        self.batches.append(list(payloads))
        return self.appended

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None: ...

    def read(self, first: int, last: int | None = None) -> Iterator[Record]:
        raise NotImplementedError

    def trim(self, upto: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        self.is_closed = True

    async def abandon(self) -> None:
        self.is_abandoned = True


def fact(number: int) -> Fact:
    return Fact(float(number), number)


def written(given: Fact) -> bytes:
    return b"%d" % given.body


def test_without_a_loop_every_append_reaches_the_log_at_once() -> None:
    log = FakeLog()
    journal = LoggedJournal(log, written, "fsync", gathers=True)
    assert journal.append([fact(1), fact(2)]) == 2
    assert journal.append([fact(3)]) == 3
    assert log.batches == [[b"1", b"2"], [b"3"]]
    assert journal.bytes == 3


async def _watched(log: FakeLog, failures: list[Exception]) -> LoggedJournal:
    journal = LoggedJournal(log, written, "fsync", gathers=True)
    journal.watch(lambda: None, failures.append)
    return journal


def test_the_facts_of_one_turn_reach_the_log_together_and_in_order() -> None:
    async def story() -> None:
        log = FakeLog()
        journal = await _watched(log, [])
        positions = [journal.append([fact(number)]) for number in range(1, 5)]
        assert positions == [1, 2, 3, 4]
        assert (journal.appended, journal.durable, log.batches) == (4, 0, [])
        await asyncio.sleep(0)
        assert log.batches == [[b"1", b"2", b"3", b"4"]]
        journal.append([fact(5)])
        assert journal.appended == 5
        await asyncio.sleep(0)
        assert log.batches[1:] == [[b"5"]]

    asyncio.run(story())


def test_closing_leaves_nothing_behind() -> None:
    async def story() -> None:
        log = FakeLog()
        journal = await _watched(log, [])
        journal.append([fact(1)])
        await journal.close()
        assert log.batches == [[b"1"]]
        assert log.is_closed
        await asyncio.sleep(0)
        assert log.batches == [[b"1"]]

    asyncio.run(story())


def test_an_abandoned_journal_writes_nothing() -> None:
    async def story() -> None:
        log, failures = FakeLog(), list[Exception]()
        journal = await _watched(log, failures)
        journal.append([fact(1)])
        await journal.abandon()
        await asyncio.sleep(0)
        assert (log.batches, log.is_abandoned, log.is_closed) == ([], True, False)
        assert failures == []

    asyncio.run(story())


def test_watchers_hear_of_a_log_that_accepts_nothing() -> None:
    async def story() -> None:
        log, failures = FakeLog(), list[Exception]()
        journal = await _watched(log, failures)
        journal.append([fact(1)])
        log.failure = StorageError("the disk is full")
        await asyncio.sleep(0)
        assert failures == [log.failure]
        assert journal.durable == 0

    asyncio.run(story())


def test_without_a_loop_a_log_that_takes_nothing_raises() -> None:
    log = FakeLog()
    log.failure = StorageError("the disk is full")
    with pytest.raises(StorageError):
        LoggedJournal(log, written, "fsync").append([fact(1)])
