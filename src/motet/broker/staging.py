"""Rows on their way into sinks, at a broker: staged beside the core, and read again for it.

One thread does all of it, one thing behind the other, so that nothing is dropped while it is read.
Pieces are answered one by one, and a connection may have one at a time: that is the flow control.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from msgspec import Raw

from motet.broker.config import BrokerConfig
from motet.broker.hatch import LONGEST_TEXT, Hatch
from motet.errors import (
    EventError,
    MisuseError,
    MotetError,
    NotAdvertised,
    NotOffered,
    PeerError,
    ProtocolError,
    StorageError,
    UnavailableError,
)
from motet.matching import FilterIndex, create_index
from motet.model import Filter, check_attributes, decode_body
from motet.model.limits import MAX_EVENT_BYTES
from motet.protocol.contract import (
    CheckStaged,
    DropStaged,
    Input,
    ReadStaged,
    RowsRead,
    StagingChecked,
    StagingWish,
)
from motet.protocol.reading.messages import Refused
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
from motet.runtime.contact import Contact
from motet.runtime.staging import Staging, age_before_s, check_attempt

log = logging.getLogger("motet.broker")

STAGING: Final = (RowsRequest, SealRequest, DropRequest)
LEASE_S: Final = 86_400.0
"""What is staged and not committed goes so long after it was touched."""
SWEEP_S: Final = 3600.0

Answer = Callable[[Contact, StagingAnswer | Refused], None]
Failed = Callable[[BaseException], None]


class Stagings:
    """`needed` are batches whose files must stay: those that are being copied. `objection` says why
    a sink may not be written into, if it may not."""

    def __init__(
        self,
        config: BrokerConfig,
        folder: Path | None = None,
        needed: Callable[[], set[Batch]] = set,
        objection: Callable[[str], str] = lambda _: "",
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
        """`turn` hands the core what it asked for."""
        self._hatch = Hatch(self._answered, answer, _is_ours)
        self._turn, self._fail = turn, fail

    # ── those who stage ──────────────────────────────────────────────────────────────────

    def take(self, contact: Contact, request: StagingRequest) -> PeerError | None:
        """Begin to answer a request; or say why its connection cannot go on."""
        return self._hatch.take(contact, request)

    async def _answered(self, request: StagingRequest) -> StagingAnswer:
        staging = self._staging
        if staging is None:
            raise NotOffered(
                f"{self._config.name} offers no sinks: it is volatile, a cell, or covering is on"
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
        objection = self._objection(request.attempt.sink) if request.index == 0 else ""
        if objection:
            raise MisuseError(objection)
        await self._do(self._add, staging, request)
        return RowsStaged(request.number)

    def _add(self, staging: Staging, request: RowsRequest) -> None:
        """Called in the thread."""
        self._gauge.check(request.advertised, request.bodies)
        staging.add(request.attempt, request.index, request.bodies)

    # ── the core ─────────────────────────────────────────────────────────────────────────

    def carry(self, wishes: Sequence[StagingWish]) -> None:
        for wish in wishes:
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
        except Exception as failure:  # what is committed cannot be read
            self._fail(failure)

    async def _drop(self, batch: Batch) -> None:
        """What stays although nobody needs it goes with the next sweep."""
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
            refused = await self._problem(batch, request)
            self._turn(StagingChecked(wish.ticket, refused))
        finally:  # from here on the core says whether it is needed
            self._checking.remove(batch)

    async def _problem(self, batch: Batch, request: CommitRequest) -> tuple[str, str]:
        """Why a batch cannot be committed: an error, and its text. If all is there, both are
        empty."""
        try:
            if self._staging is None:
                raise NotOffered(f"{self._config.name} offers no sinks: it keeps no files")
            await self._do(self._staging.check, batch, request.parts)
        except UnavailableError as problem:
            return (type(problem).__name__, str(problem)[:LONGEST_TEXT])
        return ("", "")

    # ── life ─────────────────────────────────────────────────────────────────────────────

    async def sweep(self) -> None:
        """For ever: what nobody commits goes."""
        while self._staging is not None:
            needed = self._needed() | set(self._checking)
            try:
                count = await self._do(self._staging.sweep, needed, age_before_s(LEASE_S))
            except OSError as problem:
                log.warning("staged rows that nobody commits cannot be removed: %s", problem)
                count = 0
            if count:
                log.info("%d files of rows that nobody has committed are gone", count)
            await asyncio.sleep(SWEEP_S)

    async def close(self) -> None:
        await self._hatch.close()
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


def _is_ours(problem: MotetError) -> bool:
    return isinstance(problem, StorageError)


class Gauge:
    """Whether rows are events that a sink may publish."""

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
                raise self._objection(advertised, body)

    def _objection(self, advertised: Filter, body: Raw) -> MotetError:
        try:
            attributes, _ = decode_body(body)
            check_attributes(attributes)
        except (MisuseError, PeerError) as problem:
            return problem
        size = len(memoryview(body))
        if size > MAX_EVENT_BYTES:
            return EventError(f"an event has at most {MAX_EVENT_BYTES} bytes, this one {size}")
        return NotAdvertised(
            f"the sink advertises {str(advertised)[:200]}; a row with {str(attributes)[:200]} lies "
            "outside"
        )
