"""Requests without a session: when they are repeated, and when they are given up."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from motet.client.channel import Repeat, RequestChannel, ask
from motet.client.logs.reader import open_log
from motet.errors import Disconnected, MotetError
from motet.protocol.reading.messages import Described, DescribeRequest
from motet.runtime import redial
from motet.runtime.redial import retry

BUDGET_S = 2.0


def free_address() -> tuple[str, int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host, port = taken.getsockname()
        return host, port


class Silent:
    """A broker that accepts connections and never answers."""

    def __init__(self) -> None:
        self.started = False
        self._served: list[asyncio.Future[None]] = []

    async def start(self, host: str, port: int) -> str:
        self.started = True
        self._server = await asyncio.start_server(self._serve, host, port)
        return "motet://{}:{}".format(*self._server.sockets[0].getsockname())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._served.append(served)
        await reader.read(-1)
        writer.close()
        await writer.wait_closed()
        served.set_result(None)

    async def stop(self) -> None:
        """When its peers have gone."""
        self._server.close()
        await asyncio.gather(*self._served)


async def test_waiting_for_a_broker_and_for_its_answer_share_one_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker starts late, and then it does not answer. It is given what is left then."""
    host, port = free_address()
    broker = Silent()
    clock = Clock(monkeypatch)

    async def start_late() -> None:
        if clock.now_s >= BUDGET_S / 2 and not broker.started:
            await broker.start(host, port)

    clock.on_sleep = start_late
    async with open_log(f"motet://{host}:{port}", timeout=BUDGET_S, wait=True) as log:
        with pytest.raises(Disconnected, match=r"did not answer within .*\(tried for 2 s\)") as end:
            await log.describe()
    await broker.stop()
    waited = re.search(r"did not answer within (\S+) s", str(end.value))
    assert waited is not None
    assert float(waited[1]) < redial.FIRST_S, "the last attempt has what is left of the budget"
    assert clock.now_s < BUDGET_S


@pytest.mark.parametrize("repeat", ["never", "reconnect"])
async def test_a_broker_that_was_never_reached_is_not_waited_for(repeat: Repeat) -> None:
    host, port = free_address()
    async with RequestChannel(f"motet://{host}:{port}", 60.0, repeat) as channel:
        with pytest.raises(Disconnected, match="no broker answers"):
            await channel.ask(DescribeRequest(1, channel.next_number()), Described)


async def test_a_status_that_does_not_come_is_given_up() -> None:
    broker = Silent()
    address = await broker.start("127.0.0.1", 0)
    with pytest.raises(Disconnected, match=r"did not answer within 0\.2 s"):
        await ask(address, 0.2)
    await broker.stop()


# ── the one loop ─────────────────────────────────────────────────────────────────────────


class Clock:
    """Time passes while somebody sleeps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []
        self.on_sleep: Callable[[], Awaitable[None]] | None = None
        patch.setattr(redial, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        patch.setattr(redial, "asyncio", SimpleNamespace(sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds
        if self.on_sleep is not None:
            await self.on_sleep()


def always(kind: type[MotetError]) -> Callable[[MotetError], bool]:
    return lambda problem: isinstance(problem, kind)


async def test_attempts_are_repeated_until_the_budget_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    left: list[float] = []

    async def attempt(left_s: float) -> None:
        left.append(left_s)
        raise Disconnected("away")

    with pytest.raises(Disconnected, match=r"away \(tried for 30 s\)"):
        await retry(attempt, 30.0, always(Disconnected))
    assert left == sorted(left, reverse=True)
    assert left[-1] < redial.FIRST_S < left[-2], "the last attempt comes at the very end"
    assert clock.now_s < 30.0
    assert max(clock.waits) <= redial.LAST_S


async def test_a_permanent_error_ends_retrying_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def attempt(left_s: float) -> None:
        raise MotetError(f"no, with {left_s:g} s left")

    with pytest.raises(MotetError, match=r"^no, with 30 s left$"):
        await retry(attempt, 30.0, always(Disconnected))
    assert not clock.waits
