"""Reading the logs of brokers: ranges of their streams, filtered and projected there.

    async for batch in motet.read("motet://127.0.0.1:7701", filter="level > 7", columns=["level"]):
        print(batch.records)

A reader is not a client: it needs no id, has no session, and can be at it for hours or days behind
the others without holding anybody up. Every request stands for itself, so it goes on by itself when
the broker comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from motet.client.checks import check_past
from motet.client.failures import error_of
from motet.client.happenings import Failure
from motet.client.log_batch import DEFAULT_COLUMNS, LogBatch
from motet.errors import (
    ClosedError,
    Disconnected,
    EventsLost,
    MisuseError,
    MotetError,
    PeerError,
    ProtocolError,
)
from motet.model import Filter, as_filter
from motet.model.ticks import LAST_TICK, NO_LIMIT, TICKS_PER_S
from motet.protocol.frames import PROTOCOL_VERSION, Beat
from motet.protocol.reading.messages import (
    EVENT,
    STREAM_COLUMNS,
    VALUE_KINDS,
    CursorRequest,
    CursorSet,
    Described,
    DescribeRequest,
    PubendAccount,
    ReadAnswer,
    ReaderRequest,
    ReadRequest,
    Refused,
    Wanted,
)
from motet.protocol.session.messages import Goodnight
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.redial import Backoff
from motet.runtime.transport import Connection

ATTRIBUTE: Final = "attributes."
"""Before the name of an attribute that is called like a column of the stream."""

OnLoss = Literal["raise", "tell"]
Place = int | datetime | Mapping[str, int] | None
"""A tick; a time; the tick of each pubend; None for the end that there is."""
A = TypeVar("A")


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

    def ask(self, request: ReaderRequest) -> asyncio.Future[Any]:
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

    async def set_cursor(self, name: str, tick: int, *, pubend: str | None = None) -> None:
        """Whoever goes by this name is done with everything up to `tick`, and what comes behind
        is kept for it as long as the broker's limits allow. Returns when that is durable."""
        _check_name(name)
        if type(tick) is not int or not 0 <= tick <= LAST_TICK:
            raise MisuseError(f"a cursor stands at a tick, not at {tick!r}")
        request = CursorRequest(PROTOCOL_VERSION, self._next(), pubend or "", name, tick)
        await self._ask(request, CursorSet)

    async def drop_cursor(self, name: str, *, pubend: str | None = None) -> None:
        """Nobody goes by this name any more: nothing is kept for it."""
        _check_name(name)
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
        at, end = _tick(asked.since, pubend, 0), _tick(asked.upto, pubend, 0)

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

    async def _ask(self, request: ReaderRequest, expected: type[A]) -> A:
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

    async def _once(self, request: ReaderRequest, expected: type[A]) -> A:
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


# ── what was asked ───────────────────────────────────────────────────────────────────────


class Asked:
    """The arguments of a read, checked."""

    def __init__(
        self,
        since: Place,
        upto: Place,
        filter: Filter | str | None,
        columns: Sequence[str] | Mapping[str, str] | None,
        limit: int | None,
        starts: bool,
        on_loss: OnLoss,
    ) -> None:
        if on_loss not in ("raise", "tell"):
            raise MisuseError(f'on_loss is "raise" or "tell", not {on_loss!r}')
        if limit is not None and (type(limit) is not int or not 1 <= limit <= NO_LIMIT):
            raise MisuseError(f"a limit is a number of events, 1 to {NO_LIMIT}, not {limit!r}")
        for what, place in (("since", since), ("upto", upto)):
            _check_place(what, place)
        self.since = since
        self.upto = upto
        self.filter = None if filter is None else as_filter(filter)
        self.wanted = wanted_columns(columns, starts)
        self.left = NO_LIMIT if limit is None else limit
        self.kinds = (EVENT, "start") if starts else (EVENT,)
        self.on_loss = on_loss
        self.named = {name for each in (since, upto) if isinstance(each, Mapping) for name in each}
        """Pubends whose ticks were given one by one."""

    def check_named(self, known: Sequence[str]) -> None:
        for name in self.named:
            if name not in known:
                there = ", ".join(known)
                raise MisuseError(f"there is a tick for pubend {name!r}, but there is only {there}")


def wanted_columns(
    columns: Sequence[str] | Mapping[str, str] | None, starts: bool = False
) -> tuple[Wanted, ...]:
    """What people write, as the broker wants it."""
    if columns is None:
        names = STREAM_COLUMNS if starts else DEFAULT_COLUMNS
        return tuple(Wanted(name) for name in names)
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise MisuseError(f"columns is a list of names, not {columns!r}: write [{columns!r}]")
    if isinstance(columns, Mapping):
        pairs = list(columns.items())
    else:
        pairs = [_name_and_kind(each) for each in columns]
    if not pairs:
        raise MisuseError("no column is wanted; leave `columns` out to get those of the stream")
    return tuple(_wanted(name, kind) for name, kind in pairs)


def _name_and_kind(written: Any) -> tuple[Any, str]:
    if not isinstance(written, str):
        return written, ""
    name, colon, kind = written.partition(":")
    if colon and not kind:
        raise MisuseError(f"the kind of value is missing behind {written!r}")
    return name, kind


def _wanted(name: Any, kind: Any) -> Wanted:
    if not isinstance(name, str):
        raise MisuseError(f"a column is named by text, not by {name!r}")
    if not name:
        raise MisuseError("the name of a column is empty")
    if kind and kind not in VALUE_KINDS:
        raise MisuseError(
            f"{kind!r} is no kind of value for {name}; there are {', '.join(VALUE_KINDS)}"
        )
    if name in STREAM_COLUMNS:
        if kind:
            raise MisuseError(
                f"{name} is a column of the stream and has its kind; the attribute of that name "
                f"is {ATTRIBUTE}{name}"
            )
        return Wanted(name)
    return Wanted(name, name.removeprefix(ATTRIBUTE), kind)


def _check_place(what: str, place: Any) -> None:
    match place:
        case None:
            return
        case datetime():
            if place.tzinfo is None:
                raise MisuseError(f"`{what}` has no time zone; write datetime(…, tzinfo=UTC)")
            if what == "since":
                check_past(place)
            return
        case bool():
            pass
        case int() if _is_tick(place):
            return
        case Mapping() if all(_is_tick(tick) for tick in place.values()):
            return
    raise MisuseError(
        f"`{what}` is a tick, from 1 on and up to {LAST_TICK}, a time, or ticks by pubend, "
        f"not {place!r}"
    )


def _is_tick(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LAST_TICK


def _tick(place: Place, pubend: str, otherwise: int) -> int:
    if isinstance(place, datetime):
        return max(int(place.timestamp() * TICKS_PER_S), 1)
    if isinstance(place, Mapping):
        return place.get(pubend, otherwise)
    return otherwise if place is None else place


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise MisuseError(f"a cursor has a name, not {name!r}")


def _see(future: asyncio.Future[Any]) -> None:
    """It matters to nobody any more, or somebody has it: either way it was seen."""
    if not future.cancelled():
        future.exception()


def _farewell(frame: Goodnight) -> MotetError:
    """Why the broker closed: we are to blame, or it is just away for a while."""
    error = error_of(Failure(frame.error, frame.text))
    return error if isinstance(error, PeerError) else Disconnected(f"the broker closed: {error}")
