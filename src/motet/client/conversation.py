"""The asyncio driver of a `ClientMachine`: connections come and go, the conversation goes on.

Everything here runs on the application's event loop. Writes are gathered until the loop's next
turn, or until a batch is full, and then leave at once; nothing waits for a clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec import Raw

from motet.client.arrivals import Arrivals
from motet.client.ear import Ear
from motet.client.failures import error_of
from motet.client.happenings import (
    Arrived,
    Brought,
    Concluded,
    Ended,
    Failure,
    Finished,
    Happening,
    Hurried,
    Lapsed,
    Missed,
    Parted,
    Resolved,
    Settled,
    Summoned,
    Welcomed,
)
from motet.client.ledger import Ledger
from motet.client.machine import MAX_REQUESTS, ClientMachine
from motet.client.progress import Progress
from motet.client.pulse import Line
from motet.client.questions import Questions
from motet.client.recording import Recorder
from motet.client.standing import Standing
from motet.client.subscription import Subscription
from motet.client.transaction import Participation
from motet.client.window import BATCH_EVENTS
from motet.client.wishes import Wishes
from motet.errors import (
    Aborted,
    ClosedError,
    Disconnected,
    MotetError,
    PeerError,
)
from motet.protocol.session.messages import Status
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode
from motet.runtime.redial import Backoff
from motet.runtime.transport import Connection

log = logging.getLogger("motet.client")

LONGEST_PAUSE_S = 2.0
OFFLINE_BYTES = 16 * 1024 * 1024
"""How much may wait to be published while there is no connection."""


class Conversation(Wishes):
    def __init__(self, address: str, machine: ClientMachine, *, manual: bool = False) -> None:
        self.address = address
        self.machine = machine
        self.resumed = False
        """It goes on with a durable session that another process has left."""
        self.questions = Questions(address)
        self._forgets = False
        self.ledger = Ledger()
        self.lost_sessions = 0
        self.error: MotetError | None = None
        """Why it is over; None while it is not."""
        self.entries: dict[int, Standing] = {}
        self.touched: dict[str, list[Standing]] = {}
        """What is in force or asked for, by handle."""
        self.participation = Participation(self)
        self.progress = Progress(machine, self._carry_out, manual=manual)
        self.arrivals = Arrivals(self.entries, self.progress)
        self.recorder: Recorder | None = None
        """Writes a history, if somebody asked for one."""
        self._transport = transport_for(address)
        self._loop = asyncio.get_running_loop()
        self._line: Line | None = None
        self._answers: dict[int, asyncio.Future[Resolved]] = {}
        self._leaving: dict[int, Standing] = {}
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._first_welcome: asyncio.Future[None] = self._loop.create_future()
        self._offline = asyncio.Event()
        self._gone = asyncio.Event()
        self._gone.set()
        self._keeper: asyncio.Task[None] | None = None
        self._backoff = Backoff(last_s=LONGEST_PAUSE_S)
        self._staged: list[Raw] = []
        self._staged_sure = True  # all of them, or none
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

    async def leave(self, patience_s: float, *, forget: bool = False) -> None:
        """Say goodbye and see the connection closed. A durable session stays, unless the broker
        is to `forget` it."""
        self._forgets = forget
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
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)

    def end(self, error: MotetError) -> None:
        """Over for good. Whoever waits for anything hears of it."""
        if self.error is not None:
            return
        if self.machine.state != "ended":
            self._flush()
            self.progress.tell()
            done = self._done() if self.machine.durable else {}
            self.machine.goodbye(forget=self._forgets, done=done)
            self._carry_out()
        self.progress.close()
        self.participation.close()
        self.error = error
        self._horizon = -1
        if self._made > self.ledger.settled:  # staged, and never handed over
            failure = Failure(type(error).__name__, str(error))
            self.ledger.settle(Settled(self._made, unknown=failure))
        self._relief.set()
        self._offline.set()
        ended_by_choice = isinstance(error, ClosedError)
        for entry in list(self.entries.values()):
            if self.machine.durable and isinstance(entry, Subscription):
                entry.put_back()
            entry.end(None if ended_by_choice else error)
        self.entries.clear()
        self.questions.fail(error)
        # Of what stays for the next process, the broker closes when it has written down how far
        # we are: what was done with must not come again, whoever dies next.
        if self._line is not None and not (ended_by_choice and self.machine.durable):
            self._line.connection.close(str(error))

    def _done(self) -> dict[int, dict[str, int]]:
        """By handle, how far subscriptions are, where they are further than all together."""
        slowest = self.progress.cursors()
        found: dict[int, dict[str, int]] = {}
        for handle, entry in self.entries.items():
            if isinstance(entry, Subscription):
                own = self.progress.cursors_of(entry)
                further = {p: t for p, t in own.items() if t > slowest.get(p, 0)}
                if further:
                    found[handle] = further
        return found

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
        self.questions.fail(lost)
        if not self._first_welcome.done():
            self._first_welcome.set_exception(lost)

    def heard(self, bodies: Sequence[bytes]) -> None:
        received = self.machine.received
        try:
            for body in bodies:
                frame = decode(body)
                if type(frame) is Status:
                    self.questions.answered(frame)
                    continue
                if self.recorder is not None:
                    self.recorder.heard(frame)
                received(frame)
        except PeerError as problem:
            log.warning("%s misbehaved: %s", self.address, problem)
            if self._line is not None:
                self._line.connection.abort(str(problem))
        self._carry_out()
        if not self._first_welcome.done():
            self._settle_in()

    def _settle_in(self) -> None:
        """We have begun once we know the fate of everything that was published in our session."""
        if self.machine.state == "open" and self.machine.certain:
            self._first_welcome.set_result(None)

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

    def stage(self, body: Raw, sure: bool) -> int:
        """Accept a publication that there is room for; returns its ordinal."""
        if sure is not self._staged_sure:
            self._flush()
            self._staged_sure = sure
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
        self.machine.publish(staged, self._staged_sure)
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

    @property
    def line(self) -> Line | None:
        """The connection, while there is one."""
        return self._line

    def check_open(self) -> None:
        if self.error is not None:
            raise self.error

    # ── what the machine wants ───────────────────────────────────────────────────────────

    def _carry_out(self) -> None:
        effects = self.machine.take()
        if self.recorder is not None:
            self.recorder.watch(effects)
        if effects.send and self._line is not None:
            self._line.send([encode(frame) for frame in effects.send])
        for happening in effects.happened:
            self._tell(happening)

    def _tell(self, happening: Happening) -> None:
        match happening:
            case Arrived():
                self.arrivals.arrived(happening)
            case Brought():
                self.arrivals.brought(happening)
            case Missed():
                self.arrivals.missed(happening)
            case Settled():
                self.ledger.settle(happening)
                if not self._stalled and self.error is None:
                    self._horizon = happening.upto + self.machine.window
            case Resolved():
                self._resolved(happening)
            case Summoned(invited):
                self.participation.called(invited)
            case Concluded():
                self.participation.concluded(happening)
            case Finished(handle):
                finished = self.entries.pop(handle, None)
                if finished is not None:
                    finished.end(None)
            case Welcomed():
                self._welcomed(happening)
            case Lapsed(handle, failure):
                entry = self.entries.pop(handle, None)
                if failure.error != Aborted.__name__:
                    log.error("could not renew %r: %s", entry, failure.text)
                if entry is not None:
                    entry.end(error_of(failure))
            case Hurried():
                self.progress.hurry()
            case Parted(failure):
                self._parted(failure)
            case Ended(failure):
                self._ended(failure)

    def _welcomed(self, news: Welcomed) -> None:
        self._backoff.reset()
        if self._line is not None:
            self._line.keep_pace(news.heartbeat_s)
        if news.how == "lost":
            self.lost_sessions += 1
            self.participation.lose_session()
            log.warning(
                "the session of %s was lost; a new one (%s) has all its filters again, "
                "but events may have been missed",
                self.machine.client,
                news.epoch,
            )
        if news.how == "adopted":
            self.resumed = True
            self._take_over()
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
