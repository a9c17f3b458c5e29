"""The asyncio driver of a `ClientMachine`: connections come and go, the conversation goes on.

Everything here runs on the application's event loop. Writes are gathered until the loop's next
turn, or until a batch is full, and then leave at once; nothing waits for a clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from motet.client.ear import Ear
from motet.client.failures import error_of
from motet.client.happenings import (
    Arrived,
    Ended,
    Failure,
    Happening,
    Lapsed,
    Parted,
    Resolved,
    Settled,
    Welcomed,
)
from motet.client.ledger import Ledger
from motet.client.machine import MAX_REQUESTS, ClientMachine
from motet.client.operation import INVERSE, Kind
from motet.client.pulse import Line
from motet.client.standing import Standing
from motet.client.subscription import Subscription
from motet.client.window import BATCH_EVENTS
from motet.errors import (
    ClosedError,
    Disconnected,
    MisuseError,
    MotetError,
    NotEffective,
    PeerError,
)
from motet.model import Filter
from motet.protocol.session.messages import Status, StatusRequest
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.redial import Backoff
from motet.runtime.transport import Connection

log = logging.getLogger("motet.client")

LONGEST_PAUSE_S = 2.0
ANSWER_GRACE_S = 2.0
"""How much longer than the broker we wait before we take its silence for an answer."""
MAX_FILTER_BYTES = 1024 * 1024
"""Filters are bounded where they are made; this keeps any of them far below a frame's limit."""
OFFLINE_BYTES = 16 * 1024 * 1024
"""How much may wait to be published while there is no connection."""


class Conversation:
    def __init__(self, address: str, machine: ClientMachine) -> None:
        self.address = address
        self.machine = machine
        self.ledger = Ledger()
        self.lost_sessions = 0
        self.dropped_by_broker = 0
        self.error: MotetError | None = None
        """Why it is over; None while it is not."""
        self.entries: dict[int, Standing] = {}
        """What is in force or asked for, by handle."""
        self._transport = transport_for(address)
        self._loop = asyncio.get_running_loop()
        self._line: Line | None = None
        self._answers: dict[int, asyncio.Future[Failure | None]] = {}
        self._inquirers: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._first_welcome: asyncio.Future[None] = self._loop.create_future()
        self._offline = asyncio.Event()
        self._gone = asyncio.Event()
        self._gone.set()
        self._keeper: asyncio.Task[None] | None = None
        self._backoff = Backoff(last_s=LONGEST_PAUSE_S)
        self._staged: list[Raw] = []
        self._made = 0
        self._horizon = machine.window  # no publication beyond this ordinal without asking
        self._stalled = False  # by congestion, whatever the window says
        self._stalled_bytes = 0
        self._relief = asyncio.Event()

    # ── beginning and end ────────────────────────────────────────────────────────────────

    async def begin(self, timeout_s: float) -> None:
        """Connect and be welcomed, or say why not."""
        hint = f"is a broker running there? `motet up` starts one (address {self.address})"
        try:
            async with asyncio.timeout(timeout_s):
                await self._dial()
                await self._first_welcome
        except TimeoutError:
            self._give_up()
            raise Disconnected(f"no welcome within {timeout_s:g} s; {hint}") from None
        except Disconnected as problem:
            self._give_up()
            raise Disconnected(f"{problem}; {hint}") from None
        except BaseException:
            self._give_up()
            raise
        self._keeper = self._loop.create_task(self._keep_connected())

    def _give_up(self) -> None:
        """Nobody has a client yet that could wait for a polite end."""
        self.end(ClosedError("never connected"))
        if self._line is not None:
            self._line.connection.abort("never connected")

    async def leave(self, patience_s: float) -> None:
        """Say goodbye and see the connection closed."""
        if self.error is None:
            self.end(ClosedError(f"client {self.machine.client!r} was closed"))
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        try:
            async with asyncio.timeout(patience_s):
                await self._gone.wait()
        except TimeoutError:
            if self._line is not None:
                self._line.connection.abort("the broker did not close in time")

    def end(self, error: MotetError) -> None:
        """Over for good. Whoever waits for anything hears of it."""
        if self.error is not None:
            return
        if self.machine.state != "ended":
            self._flush()
            self.machine.goodbye()
            self._carry_out()
        self.error = error
        self._horizon = -1
        if self._made > self.ledger.settled:  # staged, and never handed over
            failure = Failure(type(error).__name__, str(error))
            self.ledger.settle(Settled(self._made, unknown=failure))
        self._relief.set()
        self._offline.set()
        ended_by_choice = isinstance(error, ClosedError)
        for entry in list(self.entries.values()):
            entry.end(None if ended_by_choice else error)
        self.entries.clear()
        self._fail_inquirers(error)
        if self._line is not None:
            self._line.connection.close(str(error))

    # ── connections ──────────────────────────────────────────────────────────────────────

    async def _dial(self) -> None:
        problems: list[Exception] = []

        def accept(connection: Connection) -> Ear:
            try:
                return Ear(self, connection)
            except Exception as problem:
                # asyncio would only log it, and call the connection made.
                problems.append(problem)
                raise

        await self._transport.connect(self.address, accept)
        if problems:
            raise Disconnected(f"cannot use the connection to {self.address}: {problems[0]}")

    async def _keep_connected(self) -> None:
        while True:
            await self._offline.wait()
            if self.error is not None:
                return
            await asyncio.sleep(self._backoff.wait_s())
            self._offline.clear()
            try:
                await self._dial()
            except Disconnected as problem:
                self._offline.set()
                log.info("%s", problem)
            except Exception:  # whatever this machine lacks now, it may have later
                self._offline.set()
                log.exception("cannot connect to %s", self.address)

    def connected(self, line: Line) -> None:
        self._line = line
        self._gone.clear()
        if self.error is not None:
            line.connection.abort(str(self.error))
            return
        self.machine.opened()
        self._carry_out()

    def disconnected(self, reason: str) -> None:
        self._line = None
        self._gone.set()
        self._offline.set()
        self.machine.closed()
        if self.error is None:
            log.info("connection of %s to %s: %s", self.machine.client, self.address, reason)
        lost = Disconnected(f"the connection to {self.address} ended: {reason}")
        self._fail_inquirers(lost)
        if not self._first_welcome.done():
            self._first_welcome.set_exception(lost)

    def heard(self, bodies: Sequence[bytes]) -> None:
        received = self.machine.received
        try:
            for body in bodies:
                frame = decode(body)
                if type(frame) is Status:
                    self._inform(frame)
                else:
                    received(frame)
        except PeerError as problem:
            log.warning("%s misbehaved: %s", self.address, problem)
            if self._line is not None:
                self._line.connection.abort(str(problem))
        self._carry_out()

    def relieved(self) -> None:
        self._stalled = False
        self._stalled_bytes = 0
        if self.error is None:
            self._horizon = self.ledger.settled + self.machine.window
        self._relief.set()

    # ── publications ─────────────────────────────────────────────────────────────────────

    @property
    def has_room(self) -> bool:
        return self._made < self._horizon

    @property
    def made(self) -> int:
        return self._made

    async def room(self) -> None:
        """Wait until one more publication may be staged."""
        while self._made >= self._horizon:
            self.check_open()
            self._flush()
            if self._stalled:
                self._relief.clear()
                await self._relief.wait()
            elif self._made >= self._horizon:
                await self.ledger.reach(self.ledger.settled + 1)

    def stage(self, body: Raw) -> int:
        """Accept a publication that there is room for; returns its ordinal."""
        staged = self._staged
        staged.append(body)
        self._made = made = self._made + 1
        if len(staged) == 1:
            if made - 1 == self.ledger.settled:
                self._flush()  # nothing is under way: a lone event should not wait for a batch
            else:
                self._loop.call_soon(self._flush)
        elif len(staged) >= BATCH_EVENTS:
            self._flush()
        return made

    def _flush(self) -> None:
        staged = self._staged
        if not staged or self.error is not None:
            return
        self._staged = []
        self.machine.publish(staged)
        self._carry_out()
        line = self._line
        if line is not None and self.machine.state == "open":
            if line.connection.congested:
                self._stall()
        else:
            self._stalled_bytes += sum(map(len, staged))
            if self._stalled_bytes > OFFLINE_BYTES:
                self._stall()

    def _stall(self) -> None:
        self._stalled = True
        self._horizon = min(self._horizon, self._made)

    # ── requests ─────────────────────────────────────────────────────────────────────────

    async def put_in_force(self, entry: Standing, *, wait: bool, timeout_s: float) -> None:
        """Advertise or subscribe, and wait until it is answered; raises if it failed."""
        async with self._request_slots:
            self.check_open()
            _check_travels(entry.filter)
            self._flush()
            entry.handle = handle = self.machine.request(
                entry.kind, entry.filter, wait=wait, timeout_s=timeout_s
            )
            self.entries[handle] = entry
            try:
                await self._answer(handle, entry.kind, timeout_s)
            except BaseException:
                self.entries.pop(handle, None)
                raise

    async def take_back(self, entry: Standing, *, wait: bool, timeout_s: float) -> None:
        """The inverse. Who is cancelled while it waits for its turn may try again."""
        async with self._request_slots:
            if not entry.in_force:
                return  # somebody else was quicker, or all is over
            self._flush()
            kind = INVERSE[entry.kind]
            handle = self.machine.request(kind, target=entry.handle, wait=wait, timeout_s=timeout_s)
            entry.end(None)
            try:
                await self._answer(handle, kind, timeout_s)
            finally:
                self.entries.pop(entry.handle, None)

    async def _answer(self, handle: int, kind: Kind, timeout_s: float) -> None:
        """Let the request leave; raise unless it is done in time."""
        answer: asyncio.Future[Failure | None] = self._loop.create_future()
        self._answers[handle] = answer
        self._carry_out()
        try:
            async with asyncio.timeout(timeout_s + ANSWER_GRACE_S):
                failure = await answer
        except TimeoutError:
            self._abandon(handle)
            if self.machine.state != "open":
                raise Disconnected(f"{kind}: no connection to {self.address}") from None
            raise NotEffective(kind, (self.machine.broker or self.address,), timeout_s) from None
        except BaseException:
            self._abandon(handle)
            raise
        finally:
            self._answers.pop(handle, None)
        if failure is not None:
            if self.error is not None and failure.error == ClosedError.__name__:
                raise self.error
            raise error_of(failure, kind, timeout_s)

    def _abandon(self, handle: int) -> None:
        self.machine.abandon(handle)
        self._carry_out()

    async def inquire(self, timeout_s: float) -> dict[str, Any]:
        """The broker's own account of its state."""
        self.check_open()
        if self._line is None:
            raise Disconnected(f"no connection to {self.address}")
        if len(self._inquirers) >= MAX_REQUESTS:
            raise Disconnected(f"{self.address} answers no question about its status")
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._inquirers.append(answer)  # and it stays, for answers come in order
        self._line.send((encode(StatusRequest()),))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise Disconnected(f"{self.address} told no status within {timeout_s:g} s") from None

    def _inform(self, frame: Status) -> None:
        if self._inquirers:
            inquirer = self._inquirers.popleft()
            if not inquirer.done():
                inquirer.set_result(frame.state)

    def _fail_inquirers(self, error: MotetError) -> None:
        while self._inquirers:
            inquirer = self._inquirers.popleft()
            if not inquirer.done():
                inquirer.set_exception(error)

    def check_open(self) -> None:
        if self.error is not None:
            raise self.error

    # ── what the machine wants ───────────────────────────────────────────────────────────

    def _carry_out(self) -> None:
        effects = self.machine.take()
        if effects.send and self._line is not None:
            self._line.send([encode(frame) for frame in effects.send])
        for happening in effects.happened:
            self._tell(happening)

    def _tell(self, happening: Happening) -> None:
        match happening:
            case Arrived():
                self._arrived(happening)
            case Settled():
                self.ledger.settle(happening)
                if not self._stalled and self.error is None:
                    self._horizon = happening.upto + self.machine.window
            case Resolved(handle, failure):
                answer = self._answers.get(handle)
                if answer is not None and not answer.done():
                    answer.set_result(failure)
            case Welcomed():
                self._welcomed(happening)
            case Lapsed(handle, failure):
                entry = self.entries.pop(handle, None)
                log.error("could not renew %r: %s", entry, failure.text)
                if entry is not None:
                    entry.end(error_of(failure))
            case Parted(failure):
                self._parted(failure)
            case Ended(failure):
                self._ended(failure)

    def _arrived(self, news: Arrived) -> None:
        entries = self.entries
        for handles, publication in news.batch:
            for handle in handles:
                entry = entries.get(handle)
                if isinstance(entry, Subscription):
                    entry.arrive(publication)
        if news.dropped:
            log.warning("the broker dropped %d events that we did not read", news.dropped)
            self.dropped_by_broker += news.dropped

    def _welcomed(self, news: Welcomed) -> None:
        self._backoff.reset()
        if self._line is not None:
            self._line.keep_pace(news.heartbeat_s)
        if news.how == "lost":
            self.lost_sessions += 1
            log.warning(
                "the session of %s was lost; a new one (%s) has all its filters again, "
                "but events may have been missed",
                self.machine.client,
                news.epoch,
            )
        if not self._first_welcome.done():
            self._first_welcome.set_result(None)
        self.relieved()

    def _parted(self, failure: Failure) -> None:
        if not self._first_welcome.done():
            self._first_welcome.set_exception(error_of(failure))
        if self._line is not None:
            self._line.connection.close(failure.text)

    def _ended(self, failure: Failure) -> None:
        error = error_of(failure)
        if not self._first_welcome.done():
            self._first_welcome.set_exception(error)
        self.end(error)


def _check_travels(wanted: Filter) -> None:
    """Before it has a number: one that is numbered and cannot be sent would block all others."""
    try:
        length = len(encode(wanted))
    except Exception as problem:
        raise MisuseError(f"this filter cannot be sent: {problem}") from problem
    if length > MAX_FILTER_BYTES:
        raise MisuseError(f"a filter of {length} bytes is above the limit of {MAX_FILTER_BYTES}")
