"""Between the core and the log: records that wait for company are never forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Raw

from motet.broker.driver.pubend import FIRST_TRY, LoggedPubend
from motet.errors import StorageError
from motet.model import OpId, encode_event
from motet.protocol.contract import LogRun, LogStart
from motet.protocol.delivery.stream import ReadWanted
from motet.runtime.pubend import PubendLog

BODY = Raw(encode_event({"n": 1}, b""))


class Timer:
    """Rings when it is told to."""

    def __init__(self) -> None:
        self.action: Callable[[], None] | None = None

    def __call__(self, seconds: float, action: Callable[[], None]) -> Timer:
        assert seconds > 0
        self.action = action
        return self

    def cancel(self) -> None:
        self.action = None

    def ring(self) -> None:
        assert self.action is not None
        self.action()


def opened(folder: Path, timer: Timer) -> LoggedPubend:
    return LoggedPubend(PubendLog.open(folder, "B1.1"), timer)


def trickle(pubend: LoggedPubend, timer: Timer) -> int:
    """Publish one event after the other until one waits; how many that were."""
    for number in range(1, 2 * FIRST_TRY):
        pubend.append([LogRun(number, "alice", "B1-1", number, [BODY])])
        if timer.action is not None:
            return number
    raise AssertionError("none waits")


def kept(folder: Path) -> int:
    log = PubendLog.open(folder, "B1.1")
    last = log.state.last_published("alice", "B1-1")
    log.log.shut()
    return last


async def test_waiting_records_are_durable_after_the_timer(tmp_path: Path) -> None:
    timer, told = Timer(), asyncio.Queue[int]()
    pubend = opened(tmp_path, timer)
    pubend.watch(told.put_nowait, pytest.fail)
    count = trickle(pubend, timer)
    durable = 0
    while durable < count - 1:
        durable = await told.get()
    assert durable == count - 1
    timer.ring()
    assert await told.get() == count
    await pubend.close()


async def test_a_start_record_is_written_at_once(tmp_path: Path) -> None:
    timer, told = Timer(), asyncio.Queue[int]()
    pubend = opened(tmp_path, timer)
    pubend.watch(told.put_nowait, pytest.fail)
    count = trickle(pubend, timer)
    pubend.append([LogStart(count + 1, OpId("bob", "B1-2", 1))])
    assert timer.action is None
    while await told.get() < count + 1:
        pass
    await pubend.close()


async def test_closing_writes_what_waits(tmp_path: Path) -> None:
    timer = Timer()
    pubend = opened(tmp_path, timer)
    count = trickle(pubend, timer)
    await pubend.close()
    assert kept(tmp_path) == count


async def test_a_log_that_fails_meanwhile_is_reported(tmp_path: Path) -> None:
    timer = Timer()
    failures: list[Exception] = []
    log = PubendLog.open(tmp_path, "B1.1")
    pubend = LoggedPubend(log, timer)
    pubend.watch(lambda _: None, failures.append)
    trickle(pubend, timer)

    def refuse(*_: object) -> int:
        raise StorageError("the disk is gone")

    log.append_runs = refuse  # type: ignore[method-assign]
    timer.ring()
    assert [str(each) for each in failures] == ["the disk is gone"]
    await pubend.abandon()


async def test_ticks_announced_beyond_the_log_are_silence(tmp_path: Path) -> None:
    timer, told = Timer(), asyncio.Queue[int]()
    pubend = opened(tmp_path, timer)
    pubend.watch(told.put_nowait, pytest.fail)
    pubend.append([LogRun(5, "alice", "B1-1", 1, [BODY, BODY])])
    assert await told.get() == 1

    def read(since: int, upto: int, most: int = 10) -> list[tuple[int, int, list[int]]]:
        spans = pubend.read(ReadWanted("B1.1", since, upto, most, 1 << 20))
        return [(span.since, span.upto, span.ticks) for span in spans]

    assert read(1, 20) == [(1, 6, [5, 6]), (7, 20, [])]
    assert read(9, 20) == [(9, 20, [])]
    assert read(1, 6) == [(1, 6, [5, 6])]
    assert read(1, 20, most=1) == [(1, 5, [5])]  # the rest is not silence, but to come
    await pubend.close()
