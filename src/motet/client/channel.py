"""Requests to a broker outside of any session: one at a time, retried if the connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from motet.client.session.state import Failure, error_of
from motet.errors import ClosedError, Disconnected, MotetError, NoAnswer, PeerError, ProtocolError
from motet.protocol.frames import Beat
from motet.protocol.mobility.messages import DrainOrder, MoveOrder, SessionsRequest
from motet.protocol.reading.messages import ReaderRequest, Refused
from motet.protocol.sequencing.standby import PromoteRequest
from motet.protocol.session.messages import Farewell, Status, StatusRequest
from motet.protocol.sinks.messages import StagingRequest
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.redial import retry
from motet.runtime.transport import Connection

A = TypeVar("A")
Request = (
    ReaderRequest
    | StagingRequest
    | StatusRequest
    | MoveOrder
    | DrainOrder
    | SessionsRequest
    | PromoteRequest
)
Repeat = Literal["never", "reconnect", "always"]
"""When to retry a request that got no answer: never; if the broker was reached before; always."""


BEAT = encode(Beat())
BEAT_S = 0.3
"""A broker considers a peer dead that is silent for a second or more."""


class RequestChannel:
    """Sends requests to one broker. Each is answered, or refused, within `timeout_s`. Requests
    must be idempotent: the answer to the first attempt may have been lost."""

    def __init__(self, url: str, timeout_s: float, repeat: Repeat) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._repeats = repeat == "always"
        self._repeats_later = repeat == "reconnect"
        self._exchange: _Exchange | None = None
        self._turn = asyncio.Lock()
        self._number = 0
        self._closed = False

    def next_number(self) -> int:
        """The number of the next request; its answer carries the same."""
        self._number += 1
        return self._number

    async def ask(self, request: Request, expected: type[A]) -> A:
        async def attempt(left_s: float) -> A:
            try:
                async with asyncio.timeout(left_s):
                    return await self._ask_once(request, expected)
            except TimeoutError:
                raise NoAnswer(f"{self.url} did not answer within {left_s:.2g} s") from None

        async with self._turn:
            try:
                return await retry(attempt, self._timeout_s, self._is_temporary)
            except (Disconnected, asyncio.CancelledError):
                self._hang_up()  # a late answer would be taken for the next request's
                raise

    def _is_temporary(self, problem: MotetError) -> bool:
        if not isinstance(problem, Disconnected):
            return False
        self._hang_up()
        return self._repeats

    async def _ask_once(self, request: Request, expected: type[A]) -> A:
        if self._closed:
            raise ClosedError(f"the connection to {self.url} was closed by this program")
        exchange = self._exchange
        if exchange is None or exchange.ended:
            exchange = _Exchange()
            exchange.connection = await transport_for(self.url).connect(
                self.url, lambda _: exchange
            )
            self._exchange = exchange
            self._repeats = self._repeats or self._repeats_later
        answer = await exchange.ask(request)
        if isinstance(answer, Refused):
            raise error_of(Failure(answer.error, answer.text))
        number, asked = (getattr(each, "number", None) for each in (answer, request))
        if not isinstance(answer, expected) or number != asked:
            self._hang_up()
            raise ProtocolError(f"{self.url} answered another request: {answer!r:.200}")
        return answer

    def _hang_up(self) -> None:
        if self._exchange is not None and self._exchange.connection is not None:
            self._exchange.connection.abort("the requests are complete")
        self._exchange = None

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self._hang_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Exchange:
    """One connection, and the answer that is awaited on it."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self._awaited: asyncio.Future[Any] | None = None
        self._beating: asyncio.TimerHandle | None = None
        self.ended = ""

    def frames(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            try:
                frame = decode(body)
            except MotetError as problem:
                self._fail(problem)
                return
            if isinstance(frame, Farewell):
                self._fail(_farewell(frame))
            elif not isinstance(frame, Beat):
                self._resolve(frame)

    def _resolve(self, frame: Any) -> None:
        awaited = self._taken()
        if awaited is not None:
            awaited.set_result(frame)

    def closed(self, reason: str) -> None:
        self._fail(Disconnected(f"the broker closed before it answered: {reason}"))

    def writable(self) -> None:
        """One request at a time: nothing waits."""

    def _fail(self, problem: MotetError) -> None:
        self.ended = self.ended or str(problem)
        awaited = self._taken()
        if awaited is not None:
            awaited.set_exception(problem)

    def ask(self, request: Request) -> asyncio.Future[Any]:
        assert self.connection is not None
        body = encode(request)
        self._awaited = awaited = asyncio.get_running_loop().create_future()
        awaited.add_done_callback(mark_seen)
        self.connection.send([body])
        self._beat_later()
        return awaited

    def _beat_later(self) -> None:
        """Some requests take long, and a broker closes connections on which it hears nothing."""
        self._beating = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        if self.connection is not None:
            self.connection.send([BEAT])
            self._beat_later()

    def _taken(self) -> asyncio.Future[Any] | None:
        """The request that waits for an answer; it waits no longer."""
        awaited, self._awaited = self._awaited, None
        if self._beating is not None:
            self._beating.cancel()
        return None if awaited is None or awaited.done() else awaited


def mark_seen(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from reporting an error that no task awaits any more."""
    if not future.cancelled():
        future.exception()


def _farewell(frame: Farewell) -> MotetError:
    """Why the broker closed: this client's fault, or the broker stops."""
    error = error_of(Failure(frame.error, frame.text))
    return error if isinstance(error, PeerError) else Disconnected(f"the broker closed: {error}")


PATIENCE_S = 2.0


async def ask(
    address: str, patience_s: float = PATIENCE_S, clients: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The status of one broker, and where these clients are; `Disconnected` if it does not answer
    in time. It needs neither a session nor a hello."""
    async with RequestChannel(address, patience_s, "never") as channel:
        return (await channel.ask(StatusRequest(clients), Status)).state


Answer = dict[str, Any] | MotetError


async def ask_all(
    addresses: Mapping[str, str], patience_s: float = PATIENCE_S, clients: tuple[str, ...] = ()
) -> dict[str, Answer]:
    """Ask all brokers at once, also where these clients are. By broker, its status, or the
    error."""

    async def one(address: str) -> Answer:
        try:
            return await ask(address, patience_s, clients)
        except MotetError as problem:
            return problem

    answers = await asyncio.gather(*(one(address) for address in addresses.values()))
    return dict(zip(addresses, answers, strict=True))
