"""Late readers at a broker: their requests are answered beside the core, from the log.

Each request gives one bounded answer (see `hatch`). The work is done on a few threads, most of it
in Arrow, so that the event loop hardly notices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from motet.broker.config import BrokerConfig
from motet.broker.hatch import Hatch
from motet.errors import MisuseError, MotetError, NoClientsHere, NotOffered, PeerError
from motet.model.ticks import LAST_TICK
from motet.model.values import check_name
from motet.protocol.reading.messages import (
    EVENT,
    MAX_COLUMNS,
    MAX_CURSOR_CHARS,
    RECORD_KINDS,
    STREAM_COLUMNS,
    VALUE_KINDS,
    CursorRequest,
    CursorSet,
    Described,
    DescribeRequest,
    Outline,
    OutlineRequest,
    PubendAccount,
    ReadAnswer,
    ReaderAnswer,
    ReaderRequest,
    ReadRequest,
    Wanted,
)
from motet.runtime.contact import Contact
from motet.runtime.pubend.outline import Measure
from motet.runtime.pubend.table_reading import PIECE_BYTES, Piece, TableReading
from motet.runtime.pubend.tables import Wishes
from motet.runtime.transport import MAX_FRAME_BYTES

THREADS: Final = 2
"""For those who read all. What filters do is many small things, and two threads that do such things
take longer than one, because each waits for the other all the time: they have one together."""
MOST_ROWS: Final = 64 * 1024
CELL_BYTES: Final = 12
"""What a value costs beside what is in it, about."""
FIXED_BYTES: Final = 3 << 20
"""What that may amount to in one answer."""
MOST_CURSORS: Final = 1000
REQUESTS: Final = (ReadRequest, DescribeRequest, OutlineRequest, CursorRequest)


class Readable(Protocol):
    """A pubend that late readers may read: `account` and `set_cursor` on the event loop, the rest
    on any thread."""

    name: str

    @property
    def first_tick(self) -> int: ...

    @property
    def durable_tick(self) -> int: ...

    @property
    def tables(self) -> TableReading: ...

    def account(self) -> PubendAccount: ...

    async def set_cursor(self, name: str, tick: int | None) -> None:
        """Return when that is durable."""


class Readings:
    def __init__(
        self,
        config: BrokerConfig,
        pubends: Callable[[], Sequence[Readable]],
        answer: Callable[[Contact, ReaderAnswer], None],
    ) -> None:
        self._config = config
        self._broker = config.name
        self._pubends = pubends
        self._hatch = Hatch(self._answered, answer, _is_ours)
        self._threads: dict[bool, ThreadPoolExecutor] = {}
        """With a filter, and without."""

    def take(self, contact: Contact, request: ReaderRequest) -> PeerError | None:
        """Begin to answer a request; or say why its connection cannot go on."""
        return self._hatch.take(contact, request)

    async def close(self) -> None:
        await self._hatch.close()
        for threads in self._threads.values():
            await asyncio.to_thread(threads.shutdown)

    async def _answered(self, request: ReaderRequest) -> ReaderAnswer:
        pubends = self._logs()
        if isinstance(request, DescribeRequest):
            accounts = tuple(each.account() for each in pubends)
            return Described(request.number, self._broker, accounts)
        pubend = self._pubend(request.pubend, pubends)
        if isinstance(request, CursorRequest):
            _check_cursor(request, pubend.account())
            await pubend.set_cursor(request.name, request.tick)
            return CursorSet(request.number)
        if isinstance(request, OutlineRequest):
            _check_outline(request)
        else:
            _check(request)
        loop = asyncio.get_running_loop()
        if isinstance(request, OutlineRequest):
            return await loop.run_in_executor(self._pool(False), outline, pubend, request)
        return await loop.run_in_executor(
            self._pool(request.filter is not None), read, pubend, request
        )

    def _pool(self, filters: bool) -> ThreadPoolExecutor:
        if filters not in self._threads:
            self._threads[filters] = ThreadPoolExecutor(1 if filters else THREADS, "motet-reading")
        return self._threads[filters]

    def _logs(self) -> Sequence[Readable]:
        if self._config.head:
            raise NoClientsHere(self._config.not_here())
        pubends = self._pubends()
        if not pubends:
            raise NotOffered(
                f"{self._broker} keeps no log to read from: it is volatile, or covering is on"
            )
        return pubends

    def _pubend(self, name: str, pubends: Sequence[Readable]) -> Readable:
        if not name and len(pubends) == 1:
            return pubends[0]
        for each in pubends:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in pubends)
        raise MisuseError(f"{self._broker} has no pubend {name!r}; it has {known}")


def _is_ours(problem: MotetError) -> bool:
    return not isinstance(problem, MisuseError | NotOffered)


# ── one answer ───────────────────────────────────────────────────────────────────────────


def read(pubend: Readable, request: ReadRequest) -> ReadAnswer:
    """Called in a thread."""
    durable = pubend.durable_tick
    since = request.since or pubend.first_tick
    last = min(request.upto or durable, durable)
    tables = pubend.tables
    asked = [each for each in request.columns if each.attribute or each.name != "pubend"]
    columns = tables.resolved(asked or [Wanted("tick")], since, last)
    wishes = Wishes(columns, frozenset(request.kinds) - {EVENT})
    rows = min(request.most_rows, MOST_ROWS, FIXED_BYTES // (CELL_BYTES * (len(columns) + 1)))
    size = PIECE_BYTES
    while True:
        if since > last:
            piece = Piece(since, since - 1, False, 0, 0, {}, [])
        else:
            piece = tables.piece(since, last, request.filter, wishes, rows, size)
        data = _ipc(piece.batches)
        if len(data) < MAX_FRAME_BYTES - (1 << 20) or piece.rows <= 1:
            break
        size, rows = size // 2, max(rows // 2, 1)
    return ReadAnswer(
        request.number,
        pubend.name,
        piece.since,
        piece.upto,
        durable,
        piece.lost,
        piece.rows,
        piece.scanned,
        columns,
        piece.misfits,
        data,
    )


def outline(pubend: Readable, request: OutlineRequest) -> Outline:
    """Called in a thread."""
    durable = pubend.durable_tick
    since = request.since or pubend.first_tick
    last = min(request.upto or durable, durable)
    measure = Measure(
        request.step_events,
        request.step_bytes,
        request.most_events,
        request.most_bytes,
        request.every_block,
    )
    found = pubend.tables.outlines.piece(since, last, measure)
    return Outline(
        request.number,
        pubend.name,
        since,
        found.upto,
        durable,
        found.lost,
        tuple(found.steps),
    )


def _ipc(batches: list[Any]) -> Any:
    """All of them as one stream with one batch; a buffer, because it would be copied in vain."""
    if not batches:
        return b""
    import pyarrow  # only where columns are needed: it is large

    batch = batches[0]
    if len(batches) > 1:
        (batch,) = pyarrow.Table.from_batches(batches).combine_chunks().to_batches()
    measured = pyarrow.MockOutputStream()
    _write(pyarrow, measured, batch)
    data = pyarrow.allocate_buffer(measured.size())  # one that grows is copied as it does
    _write(pyarrow, pyarrow.FixedSizeBufferWriter(data), batch)
    return memoryview(data)


def _write(arrow: Any, sink: Any, batch: Any) -> None:
    with arrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


# ── what a reader may ask ────────────────────────────────────────────────────────────────


def _check_outline(request: OutlineRequest) -> None:
    _check_range(request)
    limits = (request.step_events, request.step_bytes, request.most_events, request.most_bytes)
    if min(limits) < 1:
        raise MisuseError("steps of no events, or of no bytes, get nowhere")


def _check_range(request: ReadRequest | OutlineRequest) -> None:
    for what, tick in (("since", request.since), ("upto", request.upto)):
        if not 0 <= tick <= LAST_TICK:
            raise MisuseError(f"{what} is a tick, from 1 on, not {tick}")


def _check(request: ReadRequest) -> None:
    _check_range(request)
    if request.most_rows < 1:
        raise MisuseError("a read that may return no event gets nowhere")
    if not request.kinds or not set(request.kinds) <= set(RECORD_KINDS):
        raise MisuseError(f"kinds of records are {' and '.join(RECORD_KINDS)}: choose among them")
    if EVENT not in request.kinds:
        raise MisuseError(f"leave {EVENT!r} among the kinds of records")
    if not 0 < len(request.columns) <= MAX_COLUMNS:
        raise MisuseError(f"ask for 1 to {MAX_COLUMNS} columns, not {len(request.columns)}")
    if len({each.name for each in request.columns}) < len(request.columns):
        raise MisuseError("two columns have the same name; leave one out")
    attributes = [each.attribute for each in request.columns if each.attribute]
    if len(set(attributes)) < len(attributes):
        raise MisuseError("an attribute is asked for twice; leave one out")
    for each in request.columns:
        _check_column(each)


def _check_column(column: Wanted) -> None:
    if column.attribute:
        check_name(column.attribute)
        if column.kind and column.kind not in VALUE_KINDS:
            kinds = ", ".join(VALUE_KINDS)
            raise MisuseError(f"{column.kind!r} is no kind of value; there are {kinds}")
    elif column.name not in STREAM_COLUMNS:
        known = ", ".join(STREAM_COLUMNS)
        raise MisuseError(f"{column.name!r} is no column of a stream; there are {known}")


def _check_cursor(request: CursorRequest, account: PubendAccount) -> None:
    name = request.name
    if not (0 < len(name) <= MAX_CURSOR_CHARS and name.isprintable()):
        raise MisuseError(f"a cursor is named by 1 to {MAX_CURSOR_CHARS} printable characters")
    known = {each.name for each in account.cursors}
    if request.tick is None:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise MisuseError(f"{account.pubend} has no cursor {name!r}; there are: {there}")
    elif not 0 <= request.tick <= account.last_tick:
        raise MisuseError(
            f"{account.pubend} has ticks up to {account.last_tick}, not yet {request.tick}"
        )
    elif name not in known and len(known) >= MOST_CURSORS:
        raise MisuseError(f"{account.pubend} has {MOST_CURSORS} cursors; remove one first")
