"""Reading the logs of brokers: ranges of their streams, filtered and projected there.

    async for batch in motet.read("motet://127.0.0.1:7701", filter="level > 7", columns=["level"]):
        print(batch.records)

A reader is not a client: it needs no id and has no session. It can read for hours, days behind
clients, without delaying any of them. Its requests are independent, so it continues by itself when
the broker returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Self, Unpack

from motet.client.channel import RequestChannel, mark_seen
from motet.client.logs.query import LogBatch, LogOutline, LogQuery, ReadOptions, tick_of
from motet.client.sync.facade import Facade, Forwarded, LoopThread, blocking, iterate
from motet.errors import EventsLost, MisuseError, check_options
from motet.model.ids import LAST_TICK, NO_LIMIT
from motet.protocol.frames import PROTOCOL_VERSION
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
    ReadRequest,
)

STEP_EVENTS: Final = 10_000


class LogReader:
    """`async with motet.open_log(url) as log:` — the logs of one broker."""

    def __init__(self, url: str, timeout_s: float, *, wait: bool = False) -> None:
        self._channel = RequestChannel(url, timeout_s, "always" if wait else "reconnect")

    @property
    def url(self) -> str:
        return self._channel.url

    async def describe(self) -> tuple[PubendAccount, ...]:
        """The pubends of the broker, with their first and last ticks, sizes and cursors."""
        request = DescribeRequest(PROTOCOL_VERSION, self._channel.next_number())
        return (await self._channel.ask(request, Described)).pubends

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
        """Sizes and transactions from tick `since` to tick `upto` (0: all that is kept), in steps
        of about `step_events` or `step_bytes`. It may end after `most_events` or `most_bytes`, and
        ends before an incomplete transaction."""
        found = LogOutline(pubend, every_block)
        while True:
            number = self._channel.next_number()
            request = OutlineRequest(
                *(PROTOCOL_VERSION, number, pubend, since, upto, step_events, step_bytes),
                *(most_events - found.events, most_bytes - found.size_bytes, every_block),
            )
            answer = await self._channel.ask(request, Outline)
            found.take(answer)
            upto = min(upto or answer.last_tick, answer.last_tick)
            is_enough = found.events >= most_events or found.size_bytes >= most_bytes
            if answer.upto >= upto or answer.upto < answer.since or is_enough:
                return found
            since = answer.upto + 1

    async def set_cursor(self, name: str, tick: int, *, pubend: str | None = None) -> None:
        """Set a cursor: its owner has processed all events up to `tick`. The broker keeps later
        ones for it, within its limits. Returns when the cursor is durable."""
        check_cursor_name(name)
        if type(tick) is not int or not 0 <= tick <= LAST_TICK:
            raise MisuseError(f"the position of a cursor is a tick, not {tick!r}")
        await self._move_cursor(name, pubend, tick)

    async def drop_cursor(self, name: str, *, pubend: str | None = None) -> None:
        """Remove a cursor: the broker no longer keeps events for it."""
        check_cursor_name(name)
        await self._move_cursor(name, pubend, None)

    async def _move_cursor(self, name: str, pubend: str | None, tick: int | None) -> None:
        number = self._channel.next_number()
        request = CursorRequest(PROTOCOL_VERSION, number, pubend or "", name, tick)
        await self._channel.ask(request, CursorSet)

    async def read(self, **options: Unpack[ReadOptions]) -> AsyncIterator[LogBatch]:
        """See `motet.read`."""
        check_options(options, ReadOptions.__annotations__)
        asked = LogQuery(**options)
        names = [asked.pubend] if asked.pubend else []
        if not names or asked.named:
            known = [each.pubend for each in await self.describe()]
            asked.check_named(known)
            names = names or known
        for name in names:
            async for batch in self._stream(asked, name):
                yield batch
            if asked.left <= 0:
                break

    async def _stream(self, asked: LogQuery, pubend: str) -> AsyncIterator[LogBatch]:
        wanted = asked.wanted
        at, end = tick_of(asked.since, pubend, 0), tick_of(asked.upto, pubend, 0)

        def request() -> ReadRequest:
            return ReadRequest(
                PROTOCOL_VERSION,
                self._channel.next_number(),
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
                    under_way = self._begin(request())  # while the caller uses this one
                yield LogBatch(answer, wanted)
                if is_over:
                    return
        finally:
            under_way.cancel()
            under_way.add_done_callback(mark_seen)

    def _begin(self, request: ReadRequest) -> asyncio.Task[ReadAnswer]:
        return asyncio.get_running_loop().create_task(self._channel.ask(request, ReadAnswer))

    async def close(self) -> None:
        """Idempotent."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def open_log(url: str, *, timeout: float = 30.0, wait: bool = False) -> LogReader:
    """The logs of the broker at `url`. The reader connects with its first request. A request raises
    `Disconnected` if it is not answered within `timeout` seconds, reconnections included. If the
    broker was never reached, it raises at once, or, with `wait`, after that time, too."""
    if not timeout > 0:
        raise MisuseError(f"a timeout is a number of seconds above 0, not {timeout!r}")
    return LogReader(url, timeout, wait=wait)


async def read(
    url: str, *, timeout: float = 30.0, **options: Unpack[ReadOptions]
) -> AsyncIterator[LogBatch]:
    """The events published exactly once at the broker at `url`, in batches, in order; one pubend
    after the other if the broker has several.

    `since` and `upto` are ticks, both included, or times; or, as a dict, the tick for each pubend.
    The defaults are the oldest event that is kept and the newest one now. The broker selects the
    events that match `filter` and sends the `columns`: those of the stream (pubend, tick, time,
    kind, publisher, epoch, sequence, attributes, payload) and any attribute; `"level"` takes the
    type found there, `"level:float"` or `{"level": "float"}` sets it. `limit` is the maximum number
    of events. With `starts`, the starts of subscriptions are included.

    Ticks that are no longer kept raise `EventsLost`; with `on_loss="tell"` they are a batch with
    `lost`.
    """
    async with open_log(url, timeout=timeout) as log:
        async for batch in log.read(**options):
            yield batch


# ── without `await` ──────────────────────────────────────────────────────────────────────


class SyncLogReader(Facade[LogReader]):
    """`with motet.open_log_sync(url) as log:` — the logs of one broker."""

    url = Forwarded[str]()
    describe = blocking(LogReader.describe)
    outline = blocking(LogReader.outline)
    set_cursor = blocking(LogReader.set_cursor)
    drop_cursor = blocking(LogReader.drop_cursor)

    def __init__(self, log: LogReader, thread: LoopThread) -> None:
        super().__init__(log, thread.host)
        self._thread = thread

    def read(self, **options: Unpack[ReadOptions]) -> Iterator[LogBatch]:
        """Options as for `motet.read`."""
        return iterate(self._host.run, self._wrapped.read(**options))

    def close(self) -> None:
        """Idempotent."""
        self._thread.finish(self._wrapped.close)

    def __exit__(self, *_: object) -> None:
        self.close()


def open_log_sync(url: str, *, timeout: float = 30.0, wait: bool = False) -> SyncLogReader:
    """`motet.open_log` without `await`."""

    async def opened() -> LogReader:
        return open_log(url, timeout=timeout, wait=wait)

    return SyncLogReader(*LoopThread.opened(opened()))


def read_sync(
    url: str, *, timeout: float = 30.0, **options: Unpack[ReadOptions]
) -> Iterator[LogBatch]:
    """`motet.read` without `await`; options as there."""
    with open_log_sync(url, timeout=timeout) as log:
        yield from log.read(**options)


# ── checks ───────────────────────────────────────────────────────────────────────────────


def check_cursor_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise MisuseError(f"the name of a cursor is text, not {name!r}")
    if len(name) > MAX_CURSOR_CHARS or not name.isprintable():
        raise MisuseError(f"the name of a cursor has 1 to {MAX_CURSOR_CHARS} printable characters")
