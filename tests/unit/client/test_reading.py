"""Reading the logs of a broker that has several."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from motet.client.channel import RequestChannel, _Exchange
from motet.client.logs.reader import LogReader
from motet.errors import MisuseError
from motet.protocol.reading.messages import (
    DescribeRequest,
    PubendAccount,
    ReadAnswer,
    ReadRequest,
)
from motet.runtime.transport import Connection


class TwoLogs(LogReader):
    """The broker has two pubends, and one event in each."""

    def __init__(self) -> None:
        super().__init__("inproc://nobody", 1.0)
        self._channel = channel = Answering()
        self.asked = channel.asked

    async def describe(self) -> tuple[PubendAccount, ...]:
        return tuple(PubendAccount(name, 1, 1, 1, 1, 9, 0, 0, 0, ()) for name in ("A.1", "A.2"))


class Answering(RequestChannel):
    def __init__(self) -> None:
        super().__init__("inproc://nobody", 1.0, "never")
        self.asked: list[tuple[str, int]] = []

    async def ask(self, request: Any, expected: Any) -> Any:
        assert isinstance(request, ReadRequest)
        assert expected is ReadAnswer
        self.asked.append((request.pubend, request.most_rows))
        return ReadAnswer(request.number, request.pubend, 1, 1, 1, False, 1, 1, (), {}, b"")


async def test_a_limit_that_is_reached_asks_no_further_pubend() -> None:
    log = TwoLogs()
    assert [batch.pubend async for batch in log.read(limit=1)] == ["A.1"]
    assert log.asked == [("A.1", 1)]


class Broken:
    """A connection that cannot send."""

    def send(self, bodies: Any) -> None:
        raise OSError(f"cannot send {bodies}")


async def test_an_unawaited_answer_logs_no_exception() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    line = _Exchange()
    line.connection = cast(Connection, Broken())
    with pytest.raises(OSError, match="cannot send"):
        line.ask(DescribeRequest(1, 1))
    line.closed("that was all")
    del line
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


@pytest.mark.parametrize("tick", [-1, 2**62, 2**70, True])
async def test_the_position_of_a_cursor_must_be_a_tick(tick: int) -> None:
    with pytest.raises(MisuseError, match="the position of a cursor is a tick"):
        await TwoLogs().set_cursor("nightly", tick)


@pytest.mark.parametrize("place", ["since", "upto"])
@pytest.mark.parametrize("pubend", [None, "A.1"])
async def test_ticks_are_of_pubends_that_exist(place: str, pubend: str | None) -> None:
    log = TwoLogs()
    ticks: Any = {place: {"A.1": 1, "A.2": 1}}
    assert [batch async for batch in log.read(pubend=pubend, **ticks)]
    ticks[place]["nope"] = 1
    with pytest.raises(MisuseError, match=r"'nope', but the broker has A\.1, A\.2"):
        assert [batch async for batch in log.read(pubend=pubend, **ticks)]
