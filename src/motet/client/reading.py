"""Reading the logs of brokers: ranges of their streams, filtered and projected there.

    async for batch in motet.read("motet://127.0.0.1:7701", filter="level > 7", columns=["level"]):
        print(batch.records)

A reader is not a client: it needs no id, has no session, and can be at it for hours or days behind
the others without holding anybody up. Every request stands for itself, so it goes on by itself when
the broker comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from motet.client.asking import Asked, OnLoss, Place, tick_of
from motet.client.failures import error_of
from motet.client.happenings import Failure
from motet.client.log_batch import LogBatch
from motet.client.log_outline import LogOutline
from motet.errors import (
    ClosedError,
    Disconnected,
    EventsLost,
    MisuseError,
    MotetError,
    PeerError,
    ProtocolError,
)
from motet.model import Filter
from motet.model.ticks import LAST_TICK, NO_LIMIT
from motet.protocol.frames import PROTOCOL_VERSION, Beat
from motet.protocol.reading.messages import (
    MAX_CURSOR_CHARS,
    CursorRequest,
    CursorSet,
    Described,
    DescribeRequest,
    Outline,
    OutlineRequest,
    PubendAccount,
    ReadAnswer,
    ReaderRequest,
    ReadRequest,
    Refused,
)
from motet.protocol.session.messages import Goodnight
from motet.protocol.sinks.messages import StagingRequest
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.redial import Backoff
from motet.runtime.transport import Connection

STEP_EVENTS: Final = 10_000
A = TypeVar("A")


Question = ReaderRequest | StagingRequest


class _Line:
    """One connection to the broker, and the answer that is awaited on it."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self._awaited: asyncio.Future[Any] | None = None
        self.ended = ""

    def frames(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            try:
                frame = decode(body)
            except MotetError as problem:
                self._fail(problem)
                return
            if isinstance(frame, Goodnight):
                self._fail(_farewell(frame))
            elif not isinstance(frame, Beat):
                self._resolve(frame)

    def _resolve(self, frame: Any) -> None:
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.done():
            awaited.set_result(frame)

    def closed(self, reason: str) -> None:
        self._fail(Disconnected(f"the broker closed before it answered: {reason}"))

    def writable(self) -> None:
        """One request at a time: there is nothing that waits."""

    def _fail(self, problem: MotetError) -> None:
        self.ended = self.ended or str(problem)
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.done():
            awaited.set_exception(problem)

    def ask(self, request: Question) -> asyncio.Future[Any]:
        assert self.connection is not None
        body = encode(request)
        self._awaited = awaited = asyncio.get_running_loop().create_future()
        awaited.add_done_callback(_see)
        self.connection.send([body])
        return awaited


class LogReader:
    """`async with motet.open_log(url) as log:` — the logs of one broker."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._line: _Line | None = None
        self._turn = asyncio.Lock()
        self._number = 0
        self._has_met = False
        self._closed = False

    # ── what can be asked ────────────────────────────────────────────────────────────────

    async def describe(self) -> tuple[PubendAccount, ...]:
        """The pubends of the broker, with their first and last ticks, sizes and cursors."""
        request = DescribeRequest(PROTOCOL_VERSION, self._next())
        return (await self._ask(request, Described)).pubends

    async def outline(
        self,
        pubend: str,
        *,
        since: int = 0,
        upto: int = 0,
        step_events: int = STEP_EVENTS,
        step_bytes: int = NO_LIMIT,
        most_events: int = NO_LIMIT,
        most_bytes: int = NO_LIMIT,
        every_block: bool = False,
    ) -> LogOutline:
        """How much there is from tick `since` to tick `upto` (0: all that is kept), in steps of
        about so many events or bytes, and which transactions. It may end behind `most_events` or
        `most_bytes`, and ends before a transaction that is not whole there."""
        found = LogOutline(pubend)
        while True:
            request = OutlineRequest(
                *(PROTOCOL_VERSION, self._next(), pubend, since, upto, step_events, step_bytes),
                *(most_events - found.events, most_bytes - found.size_bytes, every_block),
            )
            answer = await self._ask(request, Outline)
            found.take(answer)
            upto = min(upto or answer.last_tick, answer.last_tick)
            is_enough = found.events >= most_events or found.size_bytes >= most_bytes
            if answer.upto >= upto or answer.upto < answer.since or is_enough:
                return found
            since = answer.upto + 1

    async def set_cursor(self, name: str, tick: int, *, pubend: str | None = None) -> None:
        """Whoever goes by this name is done with everything up to `tick`, and what comes behind
        is kept for it as long as the broker's limits allow. Returns when that is durable."""
        check_cursor_name(name)
        if type(tick) is not int or not 0 <= tick <= LAST_TICK:
            raise MisuseError(f"a cursor stands at a tick, not at {tick!r}")
        request = CursorRequest(PROTOCOL_VERSION, self._next(), pubend or "", name, tick)
        await self._ask(request, CursorSet)

    async def drop_cursor(self, name: str, *, pubend: str | None = None) -> None:
        """Nobody goes by this name any more: nothing is kept for it."""
        check_cursor_name(name)
        request = CursorRequest(PROTOCOL_VERSION, self._next(), pubend or "", name, None)
        await self._ask(request, CursorSet)

    async def read(
        self,
        *,
        pubend: str | None = None,
        since: Place = None,
        upto: Place = None,
        filter: Filter | str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        limit: int | None = None,
        starts: bool = False,
        on_loss: OnLoss = "raise",
    ) -> AsyncIterator[LogBatch]:
        """See `motet.read`."""
        asked = Asked(since, upto, filter, columns, limit, starts, on_loss)
        names = [pubend] if pubend else []
        if not names or asked.named:
            known = [each.pubend for each in await self.describe()]
            asked.check_named(known)
            names = names or known
        for name in names:
            async for batch in self._stream(asked, name):
                yield batch
            if asked.left <= 0:
                break

    async def _stream(self, asked: Asked, pubend: str) -> AsyncIterator[LogBatch]:
        wanted = asked.wanted
        at, end = tick_of(asked.since, pubend, 0), tick_of(asked.upto, pubend, 0)

        def request() -> ReadRequest:
            return ReadRequest(
                PROTOCOL_VERSION,
                self._next(),
                pubend,
                at,
                end,
                wanted,
                asked.filter,
                asked.kinds,
                asked.left,
            )

        under_way = self._begin(request())
        try:
            while True:
                answer = await under_way
                kinds = {each.name: each for each in answer.columns}
                wanted = tuple(kinds.get(each.name, each) for each in wanted)
                end = min(end or answer.last_tick, answer.last_tick)
                at = answer.upto + 1
                if answer.since > end:
                    return
                asked.left -= answer.rows
                if answer.lost and asked.on_loss == "raise":
                    raise EventsLost(answer.pubend, answer.since, answer.upto)
                is_over = at > end or asked.left <= 0
                if not is_over:
                    under_way = self._begin(request())  # while this one is being used
                yield LogBatch(answer, wanted)
                if is_over:
                    return
        finally:
            under_way.cancel()
            under_way.add_done_callback(_see)

    def _begin(self, request: ReadRequest) -> asyncio.Task[ReadAnswer]:
        return asyncio.get_running_loop().create_task(self._ask(request, ReadAnswer))

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _ask(self, request: Question, expected: type[A]) -> A:
        """Ask, again and again if the broker is away, until the time is over."""
        backoff, why = Backoff(), ""
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    while True:
                        try:
                            return await self._once(request, expected)
                        except Disconnected as problem:
                            self._hang_up()
                            if not self._has_met:  # nobody may ever be there
                                raise
                            why = f": {problem}"
                            await asyncio.sleep(backoff.wait_s())
            except TimeoutError:
                self._hang_up()
                raise Disconnected(
                    f"{self.url} did not answer within {self._timeout_s:g} s{why}"
                ) from None
            except asyncio.CancelledError:
                self._hang_up()  # the answer would be taken for that to another question
                raise

    async def _once(self, request: Question, expected: type[A]) -> A:
        if self._closed:
            raise ClosedError("the reader was closed")
        line = self._line
        if line is None or line.ended:
            line = _Line()
            line.connection = await transport_for(self.url).connect(self.url, lambda _: line)
            self._line, self._has_met = line, True
        answer = await line.ask(request)
        if isinstance(answer, Refused):
            raise error_of(Failure(answer.error, answer.text))
        if not isinstance(answer, expected) or answer.number != request.number:  # type: ignore[attr-defined]
            self._hang_up()
            raise ProtocolError(f"the broker answered another question: {answer!r:.200}")
        return answer

    def _hang_up(self) -> None:
        if self._line is not None and self._line.connection is not None:
            self._line.connection.abort("that was all")
        self._line = None

    async def close(self) -> None:
        """Twice is harmless."""
        self._closed = True
        self._hang_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def open_log(url: str, *, timeout: float = 30.0) -> LogReader:
    """The logs of the broker at `url`. It is connected to when something is asked; `Disconnected`
    if it does not answer within `timeout` seconds, however often that was tried."""
    if not timeout > 0:
        raise MisuseError(f"a timeout is a number of seconds above 0, not {timeout!r}")
    return LogReader(url, timeout)


async def read(
    url: str,
    *,
    pubend: str | None = None,
    since: Place = None,
    upto: Place = None,
    filter: Filter | str | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    limit: int | None = None,
    starts: bool = False,
    on_loss: OnLoss = "raise",
    timeout: float = 30.0,
) -> AsyncIterator[LogBatch]:
    """What was published exactly once at the broker at `url`, batch by batch, in order; one pubend
    behind the other if it has several.

    `since` and `upto` are ticks, both included, or times; or, as a dict, the tick for each pubend.
    Without `since` it begins with the oldest event that is kept, without `upto` it ends with the
    newest one now. The broker keeps what `filter` matches and sends the `columns`: those of the
    stream (pubend, tick, time, kind, publisher, epoch, sequence, attributes, payload) and any
    attribute; `"level"` takes the kind that it has there, `"level:float"` or `{"level": "float"}`
    say it. `limit` bounds the events in all. With `starts`, beginnings of subscriptions are in it.

    What is not kept any more raises `EventsLost`; with `on_loss="tell"` it is a batch with `lost`.
    """
    async with open_log(url, timeout=timeout) as log:
        batches = log.read(
            pubend=pubend,
            since=since,
            upto=upto,
            filter=filter,
            columns=columns,
            limit=limit,
            starts=starts,
            on_loss=on_loss,
        )
        async for batch in batches:
            yield batch


# ── small things ─────────────────────────────────────────────────────────────────────────


def check_cursor_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise MisuseError(f"a cursor has a name, not {name!r}")
    if len(name) > MAX_CURSOR_CHARS or not name.isprintable():
        raise MisuseError(f"a cursor is named by 1 to {MAX_CURSOR_CHARS} printable characters")


def _see(future: asyncio.Future[Any]) -> None:
    """It matters to nobody any more, or somebody has it: either way it was seen."""
    if not future.cancelled():
        future.exception()


def _farewell(frame: Goodnight) -> MotetError:
    """Why the broker closed: we are to blame, or it is just away for a while."""
    error = error_of(Failure(frame.error, frame.text))
    return error if isinstance(error, PeerError) else Disconnected(f"the broker closed: {error}")
