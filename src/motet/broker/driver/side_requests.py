"""Requests that are answered outside the core. Each is independent and gets one bounded answer; a
connection may have one at a time: that is the flow control.

Late readers read the log. A few threads do the work, most of it in Arrow, so that the event loop is
hardly delayed.

Rows for sinks are staged, and read back for the core. One thread does all of it in sequence, so
that no file is removed while it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Raw

from motet.broker.driver.contact import Contact
from motet.errors import (
    EventError,
    InvariantError,
    MisuseError,
    MotetError,
    NoClientsHere,
    NotAdvertised,
    NotOffered,
    PeerError,
    ProtocolError,
    StorageError,
    UnavailableError,
    VersionError,
)
from motet.matching import FilterIndex, create_index
from motet.model import Filter, check_attributes, decode_body
from motet.model.ids import LAST_TICK
from motet.model.limits import MAX_EVENT_BYTES
from motet.model.values import check_name
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    CheckStaged,
    DropStaged,
    Input,
    ReadStaged,
    RowsRead,
    StagingChecked,
    StagingWish,
)
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.reading.messages import (
    EVENT,
    MAX_COLUMNS,
    MAX_CURSOR_CHARS,
    RECORD_KINDS,
    STREAM_COLUMNS,
    VALUE_KINDS,
    CursorAccount,
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
    Refused,
    Wanted,
)
from motet.protocol.room import Objection
from motet.protocol.session.messages import CommitRequest
from motet.protocol.sinks.messages import (
    MAX_STAGING_CHARS,
    MOST_BYTES,
    MOST_ROWS,
    Dropped,
    DropRequest,
    RowsRequest,
    RowsStaged,
    Sealed,
    SealRequest,
    StagingAnswer,
    StagingRequest,
)
from motet.protocol.sinks.state import Batch
from motet.runtime.pubend import PubendLog
from motet.runtime.pubend.outline import Measure
from motet.runtime.pubend.tables import PIECE_BYTES, TablePiece, Wishes
from motet.runtime.staging import Staging, age_before_s, check_attempt
from motet.runtime.transport import MAX_FRAME_BYTES

log = logging.getLogger("motet.broker")

LONGEST_TEXT: Final = 2000


class Request(Protocol):
    @property
    def version(self) -> int: ...

    @property
    def number(self) -> int: ...


Asked = TypeVar("Asked", bound=Request)
Answered = TypeVar("Answered")


class SideRequests(Generic[Asked, Answered]):
    """`find` finds the answer, `answer` sends it. `is_ours` tells errors that are the broker's own,
    which its operator should know of."""

    def __init__(
        self,
        find: Callable[[Asked], Awaitable[Answered]],
        answer: Callable[[Contact, Answered | Refused], None],
        is_ours: Callable[[MotetError], bool],
    ) -> None:
        self._find = find
        self._answer = answer
        self._is_ours = is_ours
        self._asked: dict[int, asyncio.Task[None]] = {}
        """The request that is being answered, by the number of its contact."""

    def take(self, contact: Contact, request: Asked) -> PeerError | None:
        """Start to answer a request; or return why its connection must be closed."""
        if request.version != PROTOCOL_VERSION:
            return VersionError(
                f"the peer speaks version {request.version} of the protocol, this broker "
                f"{PROTOCOL_VERSION}"
            )
        if contact.number in self._asked:
            return ProtocolError("asked again before the answer came: wait for it")
        task = asyncio.get_running_loop().create_task(self._serve(contact, request))
        self._asked[contact.number] = task
        return None

    async def close(self) -> None:
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, contact: Contact, request: Asked) -> None:
        answer: Answered | Refused
        try:
            answer = await self._find(request)
        except MotetError as problem:
            if self._is_ours(problem):
                log.error("%s cannot be served: %s", contact, problem)
            answer = Refused(request.number, type(problem).__name__, str(problem)[:LONGEST_TEXT])
        except Exception as failure:  # a request must not be able to stop a broker
            log.exception("%s cannot be served, by our own fault", contact)
            text = f"the broker failed to answer: {failure!r}"[:LONGEST_TEXT]
            answer = Refused(request.number, InvariantError.__name__, text)
        finally:
            self._asked.pop(contact.number, None)
        self._answer(contact, answer)


# ── late readers of the log ──────────────────────────────────────────────────────────────

THREADS: Final = 2
"""For unfiltered reads. Filtered reads share one thread: they consist of many small operations,
where two threads take longer than one because each constantly waits for the other."""
ANSWER_ROWS: Final = 64 * 1024
CELL_BYTES: Final = 12
"""The approximate cost of a value in addition to its content."""
FIXED_BYTES: Final = 3 << 20
"""The limit of these costs in one answer."""
MOST_CURSORS: Final = 1000
REQUESTS: Final = (ReadRequest, DescribeRequest, OutlineRequest, CursorRequest)


class ReadableLog:
    """A broker's own pubend as late readers see it. Any thread may use its ticks and tables, only
    the event loop the rest."""

    def __init__(self, log: PubendLog) -> None:
        self._log = log
        self.name = log.pubend
        self.tables = log.tables
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def first_tick(self) -> int:
        return self._log.first_tick

    @property
    def durable_tick(self) -> int:
        return self._log.whole_tick

    def account(self) -> PubendAccount:
        log, holdings = self._log, self._log.holdings
        cursors = tuple(
            CursorAccount(name, tick, log.cursors.expires_s(name))
            for name, tick in log.cursors.ticks().items()
        )
        return PubendAccount(
            log.pubend,
            log.first_tick,
            log.whole_tick,
            holdings.acknowledged,
            holdings.events,
            holdings.size_bytes,
            holdings.sealed_bytes,
            holdings.lost_upto,
            holdings.lost_events,
            cursors,
            holdings.destroyed_upto,
            log.tables.outlines.gone_cut,
        )

    async def set_cursor(self, name: str, tick: int | None) -> None:
        """Set or remove a cursor; returns when that is durable."""
        log = self._log
        position = log.cursors.remove(name) if tick is None else log.cursors.set(name, tick)
        if log.durable < position:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((position, waiting))
            await waiting

    def grown(self) -> None:
        """More of the log is durable."""
        while self._waiting and self._waiting[0][0] <= self._log.durable:
            waiting = self._waiting.popleft()[1]
            if not waiting.done():
                waiting.set_result(None)


class Readings:
    def __init__(
        self,
        config: BrokerConfig,
        readable: ReadableLog | None,
        answer: Callable[[Contact, ReaderAnswer], None],
    ) -> None:
        self._config = config
        self._broker = config.name
        self._readable = readable
        self.requests = SideRequests(
            self._answered, answer, lambda it: not isinstance(it, MisuseError | NotOffered)
        )
        self._threads: dict[bool, ThreadPoolExecutor] = {}
        """By whether the request has a filter."""

    async def close(self) -> None:
        await self.requests.close()
        for threads in self._threads.values():
            await asyncio.to_thread(threads.shutdown)

    async def _answered(self, request: ReaderRequest) -> ReaderAnswer:
        pubend = self._log()
        if isinstance(request, DescribeRequest):
            return Described(request.number, self._broker, (pubend.account(),))
        if request.pubend not in ("", pubend.name):
            raise MisuseError(
                f"{self._broker} has no pubend {request.pubend!r}; it has {pubend.name}"
            )
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

    def _log(self) -> ReadableLog:
        if self._config.head:
            raise NoClientsHere(self._config.not_here())
        if self._readable is None:
            raise NotOffered(
                f"{self._broker} keeps no log to read from: it is volatile, or covering is on"
            )
        return self._readable


# ── one answer ───────────────────────────────────────────────────────────────────────────


def read(pubend: ReadableLog, request: ReadRequest) -> ReadAnswer:
    """Answer a read; called in a thread."""
    durable = pubend.durable_tick
    since = request.since or pubend.first_tick
    last = min(request.upto or durable, durable)
    tables = pubend.tables
    asked = [each for each in request.columns if each.attribute or each.name != "pubend"]
    columns = tables.resolved(asked or [Wanted("tick")], since, last)
    wishes = Wishes(columns, frozenset(request.kinds) - {EVENT})
    rows = min(request.most_rows, ANSWER_ROWS, FIXED_BYTES // (CELL_BYTES * (len(columns) + 1)))
    size = PIECE_BYTES
    while True:
        if since > last:
            piece = TablePiece(since, since - 1, False, 0, 0, {}, [])
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


def outline(pubend: ReadableLog, request: OutlineRequest) -> Outline:
    """Answer an outline request; called in a thread."""
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
    """All batches as one stream with one batch; a buffer, to avoid a copy."""
    if not batches:
        return b""
    import pyarrow  # imported only where columns are needed: it is large

    batch = batches[0]
    if len(batches) > 1:
        (batch,) = pyarrow.Table.from_batches(batches).combine_chunks().to_batches()
    measured = pyarrow.MockOutputStream()
    _write(pyarrow, measured, batch)
    data = pyarrow.allocate_buffer(measured.size())  # a growing buffer would be copied as it grows
    _write(pyarrow, pyarrow.FixedSizeBufferWriter(data), batch)
    return memoryview(data)


def _write(arrow: Any, sink: Any, batch: Any) -> None:
    with arrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


# ── validation of requests ───────────────────────────────────────────────────────────────


def _check_outline(request: OutlineRequest) -> None:
    _check_range(request)
    limits = (request.step_events, request.step_bytes, request.most_events, request.most_bytes)
    if min(limits) < 1:
        raise MisuseError("step_events, step_bytes, most_events and most_bytes must be at least 1")


def _check_range(request: ReadRequest | OutlineRequest) -> None:
    for what, tick in (("since", request.since), ("upto", request.upto)):
        if not 0 <= tick <= LAST_TICK:
            raise MisuseError(f"{what} is a tick, from 1 on, not {tick}")


def _check(request: ReadRequest) -> None:
    _check_range(request)
    if request.most_rows < 1:
        raise MisuseError(f"most_rows must be at least 1, not {request.most_rows}")
    if not request.kinds or not set(request.kinds) <= set(RECORD_KINDS):
        raise MisuseError(f"kinds of records are {' and '.join(RECORD_KINDS)}: choose among them")
    if EVENT not in request.kinds:
        raise MisuseError(f"the kinds of records must include {EVENT!r}")
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


# ── rows for sinks ───────────────────────────────────────────────────────────────────────

STAGING: Final = (RowsRequest, SealRequest, DropRequest)
LEASE_S: Final = 86_400.0
"""Staged rows that are not committed are removed this long after their last change."""
SWEEP_S: Final = 3600.0

Answer = Callable[[Contact, StagingAnswer | Refused], None]
Failed = Callable[[BaseException], None]


class Stagings:
    """`needed`: batches whose files must stay because they are being copied. `objection`: why a
    sink may not be written to, or ""."""

    def __init__(
        self,
        config: BrokerConfig,
        folder: Path | None = None,
        needed: Callable[[], set[Batch]] = set,
        objection: Callable[[str], Objection | None] = lambda _: None,
    ) -> None:
        self._config = config
        self._staging = Staging(folder) if folder is not None else None
        self._needed = needed
        self._objection = objection
        self._checking: list[Batch] = []
        self._wishes: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._gauge = Gauge()

    def open(self, answer: Answer, turn: Callable[[Input], None], fail: Failed) -> None:
        """`turn` gives the core the results of its wishes."""
        self.requests = SideRequests(
            self._answered, answer, lambda it: isinstance(it, StorageError)
        )
        self._turn, self._fail = turn, fail

    # ── programs that stage rows ─────────────────────────────────────────────────────────

    async def _answered(self, request: StagingRequest) -> StagingAnswer:
        staging = self._staging
        if staging is None:
            raise NotOffered(
                f"{self._config.name} does not support sinks: it is volatile, a cell, "
                "or covering is on"
            )
        if isinstance(request, DropRequest):
            batch = Batch(request.sink, request.job, request.epoch)
            if batch not in self._needed() and batch not in self._checking:
                await self._do(staging.drop, batch)
            return Dropped(request.number)
        check_attempt(request.attempt, MAX_STAGING_CHARS)
        if isinstance(request, SealRequest):
            part = await self._do(staging.seal, request.attempt, request.pieces)
            return Sealed(request.number, part)
        objection = self._objection(request.attempt.sink) if request.index == 0 else None
        if objection is not None:
            raise objection.exception()
        await self._do(self._add, staging, request)
        return RowsStaged(request.number)

    def _add(self, staging: Staging, request: RowsRequest) -> None:
        """Called in the thread."""
        self._gauge.check(request.advertised, request.bodies)
        staging.add(request.attempt, request.index, request.bodies)

    # ── wishes of the core ───────────────────────────────────────────────────────────────

    def carry(self, wish: StagingWish) -> None:
        task = asyncio.get_running_loop().create_task(self._grant(wish))
        self._wishes.add(task)
        task.add_done_callback(self._wishes.discard)

    async def _grant(self, wish: StagingWish) -> None:
        try:
            match wish:
                case CheckStaged():
                    await self._check(wish)
                case ReadStaged(block, at):
                    assert self._staging is not None
                    bodies = await self._do(self._staging.rows, block, at)
                    self._turn(RowsRead(block.tx, at, bodies))
                case DropStaged(block):
                    await self._drop(block.batch)
        except Exception as failure:  # committed rows cannot be read
            self._fail(failure)

    async def _drop(self, batch: Batch) -> None:
        """Remove staged rows; the next sweep removes those that could not be removed now."""
        assert self._staging is not None
        try:
            await self._do(self._staging.drop, batch, True)
        except OSError as problem:
            log.warning("staged rows that the log has cannot be removed: %s", problem)

    async def _check(self, wish: CheckStaged) -> None:
        request = wish.request
        batch = Batch(wish.client, request.job, request.epoch or 0)
        self._checking.append(batch)
        try:
            self._turn(StagingChecked(wish.ticket, await self._refusal(batch, request)))
        finally:  # from here on the core says whether it is needed
            self._checking.remove(batch)

    async def _refusal(self, batch: Batch, request: CommitRequest) -> Objection | None:
        """Why a batch cannot be committed."""
        try:
            if self._staging is None:
                raise NotOffered(f"{self._config.name} does not support sinks: it keeps no files")
            await self._do(self._staging.check, batch, request.parts)
        except UnavailableError as problem:
            return Objection(type(problem).__name__, str(problem)[:LONGEST_TEXT])
        return None

    # ── life cycle ───────────────────────────────────────────────────────────────────────

    async def sweep(self) -> None:
        """Periodically remove rows that were never committed."""
        while self._staging is not None:
            needed = self._needed() | set(self._checking)
            try:
                count = await self._do(self._staging.sweep, needed, age_before_s(LEASE_S))
            except OSError as problem:
                log.warning("cannot remove expired staged rows: %s", problem)
                count = 0
            if count:
                log.info("removed %d files of staged rows that were never committed", count)
            await asyncio.sleep(SWEEP_S)

    async def close(self) -> None:
        await self.requests.close()
        tasks = list(self._wishes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._threads is not None:
            await asyncio.to_thread(self._threads.shutdown)

    async def _do(self, work: Callable[..., Any], *given: Any) -> Any:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "motet-staging")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)


class Gauge:
    """Checks that rows are events that a sink may publish."""

    def __init__(self) -> None:
        self._filter: Filter | None = None
        self._index: FilterIndex | None = None

    def check(self, advertised: Filter, bodies: list[Raw]) -> None:
        if not 0 < len(bodies) <= MOST_ROWS:
            raise ProtocolError(f"a piece has 1 to {MOST_ROWS} rows, not {len(bodies)}")
        if len(bodies) > 1 and sum(len(memoryview(each)) for each in bodies) > MOST_BYTES:
            raise ProtocolError(f"a piece has at most {MOST_BYTES} bytes")
        if self._index is None or self._filter != advertised:
            self._filter, self._index = advertised, create_index()
            self._index.add(0, advertised, 0)
        matches = self._index.hops_encoded
        for body in bodies:
            if not matches(body) or len(memoryview(body)) > MAX_EVENT_BYTES:
                raise self._unfit(advertised, body)

    def _unfit(self, advertised: Filter, body: Raw) -> MotetError:
        try:
            attributes, _ = decode_body(body)
            check_attributes(attributes)
        except (MisuseError, PeerError) as problem:
            return problem
        size = len(memoryview(body))
        if size > MAX_EVENT_BYTES:
            return EventError(f"an event has at most {MAX_EVENT_BYTES} bytes, this one {size}")
        return NotAdvertised(
            f"the sink has not advertised a row with {str(attributes)[:200]}, but only "
            f"{str(advertised)[:200]}: advertise it first"
        )
