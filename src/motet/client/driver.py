"""The asyncio driver of a `ClientMachine`: one session across many connections.

Everything here runs on the application's event loop. Writes are gathered until the loop's next
turn, or until a batch is full, and are then sent at once; no timer delays them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Raw

from motet.client.checks import length_sent
from motet.client.history import Recorder
from motet.client.line.line import Dialer, Line
from motet.client.loop_guard import LoopGuard
from motet.client.publications import ReceiptBook
from motet.client.registrations import Arrivals, Registrations
from motet.client.relocation import ANSWER_GRACE_S, MoveCalls
from motet.client.session.machine import MAX_REQUESTS, ClientMachine
from motet.client.session.requests import how_to_know
from motet.client.session.state import (
    Arrived,
    Concluded,
    ConnectionEnd,
    Dismissed,
    Failure,
    Finished,
    Lapsed,
    Missed,
    Notice,
    ProgressDemand,
    ReceivedInvitation,
    Redirected,
    Resolved,
    Settled,
    StreamBatch,
    Welcomed,
    error_of,
)
from motet.client.session.streams import BATCH_EVENTS
from motet.client.subscription import Progress, Subscription
from motet.client.transaction import Participation
from motet.errors import (
    Aborted,
    ClosedError,
    Disconnected,
    MisuseError,
    MotetError,
    NoAnswer,
    NotEffective,
    OutcomeUnknown,
    PeerError,
    StillSpreading,
    TimedOut,
)
from motet.protocol.session.messages import (
    AnswerRequest,
    BeginRequest,
    CommitRequest,
    ConsentRequest,
    EndRequest,
    ExecuteRequest,
    InviteRequest,
    OutcomeRequest,
    StageRequest,
    TxRequest,
)
from motet.protocol.traits import SMALL_BYTES
from motet.runtime.codec import blame, decode_unchecked, encode, too_large
from motet.runtime.transport import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from motet.client.line.line import Line

log = logging.getLogger("motet.client")


VERBS: dict[type, str] = {
    BeginRequest: "begin a transaction",
    ExecuteRequest: "execute a plan",
    StageRequest: "publish in a transaction",
    InviteRequest: "invite to a transaction",
    AnswerRequest: "take part in a transaction",
    ConsentRequest: "take part in plans",
    EndRequest: "end a transaction",
    OutcomeRequest: "ask for an outcome",
    CommitRequest: "commit a batch",
}
"""The name of a request about a transaction in its error texts."""
AWAY = "the root, or a broker on the way to it, could not be reached"


class PendingAnswers:
    """The callers that wait for answers. At most `MAX_REQUESTS` requests are open at a time."""

    def __init__(self, driver: SessionDriver) -> None:
        self._driver = driver
        self._waiting: dict[int, asyncio.Future[Resolved]] = {}
        self.slots = asyncio.Semaphore(MAX_REQUESTS)
        """One slot is held while a request is open."""

    def resolved(self, news: Resolved) -> None:
        answer = self._waiting.get(news.handle)
        if answer is not None and not answer.done():
            answer.set_result(news)

    async def wait(
        self, handle: int, kind: str, timeout_s: float, limit: asyncio.Timeout | None = None
    ) -> str:
        """Send the request; raise unless it is done in time, or within `limit`."""
        driver = self._driver
        answer: asyncio.Future[Resolved] = asyncio.get_running_loop().create_future()
        self._waiting[handle] = answer
        driver.carry_out()
        try:
            async with limit or asyncio.timeout(timeout_s + ANSWER_GRACE_S):
                resolved = await answer
        except TimeoutError:
            self._abandon(handle)
            if driver.machine.state != "open":
                text = f"{kind}: no connection to {driver.dialer.address} within {timeout_s:g} s"
                raise NoAnswer(text) from None
            broker = driver.machine.broker or driver.dialer.address
            raise NotEffective(kind, (broker,), timeout_s) from None
        except BaseException:
            self._abandon(handle)
            raise
        finally:
            self._waiting.pop(handle, None)
        failure = resolved.failure
        if failure is not None:
            if driver.error is not None and failure.error == ClosedError.__name__:
                raise driver.error
            raise error_of(failure, kind, timeout_s)
        return resolved.value

    def _abandon(self, handle: int) -> None:
        self._driver.machine.abandon(handle)
        self._driver.carry_out()

    async def ask(self, request: TxRequest) -> str:
        """Send a request about a transaction; returns the value of its answer."""
        driver = self._driver
        driver.guard.check()
        async with self.slots:
            driver.check_open()
            _check_sendable(request)
            driver.flush()
            handle = driver.machine.parts.ask(request)
            tx = driver.machine.parts.commits(handle)
            try:
                return await self.wait(handle, VERBS[type(request)], request.timeout_s)
            except NotEffective as problem:
                if isinstance(request, CommitRequest):
                    raise OutcomeUnknown(
                        f"{problem.operation}: no answer within {problem.timeout_s:g} s; repeat "
                        "the commit, which has no effect if the batch was committed"
                    ) from problem
                # Our broker is connected: it waits for another one, ultimately for the root.
                text = f"{problem.operation}: {AWAY} within {problem.timeout_s:g} s"
                if not tx:
                    raise TimedOut(text) from problem
                raise OutcomeUnknown(f"{text}; {how_to_know(tx)}") from problem
            except Disconnected as problem:
                if not tx:
                    raise
                raise OutcomeUnknown(f"{problem}; {how_to_know(tx)}") from problem
            except StillSpreading as problem:
                problem.tx = tx
                raise


def _check_sendable(request: TxRequest) -> None:
    what = f"cannot {VERBS[type(request)]}"
    length = length_sent(request, what)
    if length > MAX_FRAME_BYTES:
        text = f"a request of {length} bytes is above the limit of {MAX_FRAME_BYTES}"
        raise MisuseError(f"{what}: {text}")


OFFLINE_BYTES = 16 * 1024 * 1024
"""How many bytes of publications may wait while there is no connection."""


LONGEST_ARRIVAL_S = 10.0
"""How long a client that has moved waits for a welcome before it asks its former broker again where
its session is."""


CHECK_BROKER = "check that the broker runs: `motet status` shows it, `motet up` starts an overlay"
"""What to do if no broker answers."""


class ClientSession:
    """The state of a client's session."""

    def __init__(self, driver: SessionDriver) -> None:
        self._driver = driver
        self.resumed = False
        """Whether it continues the durable session of an earlier process. If not, a durable client
        was away for longer than its session was kept, or it is new."""
        self.lost_sessions = 0
        """How often a session was lost and a new one opened: events may have been missed then."""

    @property
    def epoch(self) -> str:
        """The broker's name for this session; a new one means that the old one was lost."""
        return self._driver.machine.epoch or ""

    @property
    def address(self) -> str:
        """The address of the broker that the client is, or was last, connected to."""
        return self._driver.dialer.address

    @property
    def published(self) -> int:
        """How many publications of this session are settled, those of earlier processes included:
        durable, unless they were refused or best effort."""
        return self._driver.machine.window.answered

    @property
    def unsettled(self) -> int:
        """Publications that are not settled yet."""
        return self._driver.made - self._driver.ledger.settled

    @property
    def dropped_by_broker(self) -> int:
        """Events that the broker dropped because this client did not read the connection."""
        return self._driver.arrivals.dropped_by_broker

    @property
    def lost_events(self) -> int:
        """How often the broker has reported that exactly-once events are permanently lost, because
        they were trimmed or destroyed before they were delivered. `Subscription.lost` counts the
        same per subscription."""
        return self._driver.arrivals.lost_events

    @property
    def cursors(self) -> Mapping[str, int]:
        """By pubend, the tick up to which the application has acknowledged every event."""
        return MappingProxyType(dict(self._driver.progress.cursors()))

    def __repr__(self) -> str:
        return f"<ClientSession {self.epoch or 'without an epoch'} at {self.address}>"


class SessionDriver:
    def __init__(
        self,
        addresses: Sequence[str],
        machine: ClientMachine,
        *,
        manual: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self.machine = machine
        self.guard = LoopGuard(self._forked)
        self.session = ClientSession(self)
        self.dialer = Dialer(addresses, self)
        self.on_session_lost: Callable[[], object] | None = None
        self.on_resumed: Callable[[], object] | None = None
        self._callbacks: set[asyncio.Task[None]] = set()
        self._forgets = False
        self.ledger = ReceiptBook(self.guard)
        self.error: MotetError | None = None
        """Why it has ended; None while it has not."""
        self.answers = PendingAnswers(self)
        self.relocation = MoveCalls(self)
        self.registrations = Registrations(self)
        self.participation = Participation(self)
        self.progress = Progress(machine, self.carry_out, self.guard, manual=manual)
        self.arrivals = Arrivals(self.registrations.entries, self.progress)
        self.recorder = recorder
        """Records a history, if the application asked for one."""
        self._loop = asyncio.get_running_loop()
        self._line: Line | None = None
        self._first_welcome: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._gone.set()
        self._staged: list[Raw] = []
        self._staged_sure = True  # of all staged publications
        self.made = 0
        self._horizon = machine.window.size  # the last ordinal for which there is room
        self._stalled = False  # by congestion, even if the window has room
        self._stalled_bytes = 0
        self._asked = False
        """The broker has asked for acknowledgements. The answer waits until the application's side
        has everything that has arrived; an earlier answer would acknowledge events that came behind
        the question."""
        self._relief = asyncio.Event()

    # ── beginning and end ────────────────────────────────────────────────────────────────

    async def begin(self, timeout_s: float) -> None:
        """Connect and wait for the welcome; raise if there is none."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.dialer.dial()
                await self._first_welcome
        except BaseException as problem:
            await self._give_up()
            if isinstance(problem, Disconnected):
                raise type(problem)(f"{problem}; {CHECK_BROKER}") from None
            if isinstance(problem, TimeoutError):
                text = f"{self.dialer.address} sent no welcome within {timeout_s:g} s"
                raise NoAnswer(f"{text}; {CHECK_BROKER}") from None
            raise
        self.dialer.settled = self.machine.durable  # its session has one home
        self.dialer.keep()

    async def _give_up(self) -> None:
        """End before the application has a client that it could close."""
        self.end(ClosedError("never connected"))
        if self._line is not None:
            self._line.connection.abort("never connected")
        await self.dialer.stopped()
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)

    async def leave(self, patience_s: float, *, forget: bool = False) -> None:
        """Say goodbye and wait until the connection is closed. A durable session stays, unless the
        broker is to `forget` it."""
        self._forgets = forget
        if self.error is None:
            self.end(ClosedError(f"client {self.machine.client!r} was closed"))
        await self.dialer.stopped()
        try:
            async with asyncio.timeout(patience_s):
                await self._gone.wait()
        except TimeoutError:
            if self._line is not None:
                self._line.connection.abort("the broker did not close in time")
        if self.recorder is not None:
            await asyncio.to_thread(self.recorder.close)

    def end(self, error: MotetError) -> None:
        """End permanently. All waiting callers get an error."""
        if self.error is not None:
            return
        if self.machine.state != "ended":
            self.flush()
            self.progress.tell()
            done = self._done() if self.machine.durable else {}
            self.machine.goodbye(forget=self._forgets, done=done)
            self.carry_out()
        self.progress.close()
        self.participation.close()
        self.error = error
        self._horizon = -1
        if self.made > self.ledger.settled:  # staged, but never passed to the machine
            failure = Failure(type(error).__name__, str(error))
            self.ledger.settle(Settled(self.made, unknown=failure))
        self._relief.set()
        self.dialer.stop()
        ended_by_choice = isinstance(error, ClosedError)
        self.registrations.end_all(
            None if ended_by_choice else error, put_back=self.machine.durable
        )
        self.registrations.entries.clear()
        # If a durable session stays, the broker closes once it has stored the client's position:
        # acknowledged events must not be delivered again, whichever process dies next.
        if self._line is not None and not (ended_by_choice and self.machine.durable):
            self._line.connection.close(str(error))

    def _forked(self, error: MisuseError) -> None:
        """This is a forked child: end, but leave the connection to the parent."""
        self._line = self.recorder = None
        self.progress.close()
        self.error = error
        self._horizon = -1
        self.ledger.disown(Settled(self.made, unknown=Failure("MisuseError", str(error))))
        self.registrations.disown(error)

    def _done(self) -> dict[int, dict[str, int]]:
        """By handle, the cursors of subscriptions that are ahead of the slowest one."""
        slowest = self.progress.cursors()
        found: dict[int, dict[str, int]] = {}
        for handle, entry in self.registrations.entries.items():
            if isinstance(entry, Subscription):
                own = self.progress.cursors_of(entry)
                further = {p: t for p, t in own.items() if t > slowest.get(p, 0)}
                if further:
                    found[handle] = further
        return found

    # ── connections ──────────────────────────────────────────────────────────────────────

    def connected(self, line: Line) -> None:
        self._line = line
        self._gone.clear()
        if self.error is not None:
            line.connection.abort(str(self.error))
            return
        self.machine.opened()
        self.carry_out()
        if self.dialer.is_redirected:
            self._loop.call_later(LONGEST_ARRIVAL_S, self._ask_again, line)

    def _ask_again(self, line: Line) -> None:
        if line is self._line and self.machine.state == "greeting":
            line.connection.abort(f"no welcome within {LONGEST_ARRIVAL_S:g} s")

    def disconnected(self, reason: str) -> None:
        self._line = None
        self._gone.set()
        self.dialer.lost()
        self.machine.closed()
        if self.error is None:
            log.info("connection of %s to %s: %s", self.machine.client, self.dialer.address, reason)
        if not self._first_welcome.done() and not self.dialer.is_redirected:
            lost = Disconnected(f"the connection to {self.dialer.address} ended: {reason}")
            self._first_welcome.set_exception(lost)

    def heard(self, bodies: Sequence[bytes]) -> None:
        received = self.machine.received
        try:
            for body in bodies:
                try:
                    frame = decode_unchecked(body)
                except Exception as problem:
                    raise blame(body, problem) from None
                if len(body) > SMALL_BYTES and (wrong := too_large(frame, len(body))) is not None:
                    raise wrong
                if self.recorder is not None:
                    self.recorder.heard(frame)
                received(frame)
        except PeerError as problem:
            log.warning("%s violated the protocol: %s", self.dialer.address, problem)
            if self.recorder is not None:
                self.recorder.odd("invariants", f"{self.machine.client} cannot continue: {problem}")
            if self._line is not None:
                self._line.connection.abort(str(problem))
        self.carry_out()
        if not self._first_welcome.done():
            self._settle_in()

    def _settle_in(self) -> None:
        """Finish connecting once the fate of everything published in this session is known."""
        if self.machine.state == "open" and self.machine.certain:
            self._first_welcome.set_result(None)

    def relieved(self) -> None:
        self._stalled = False
        self._stalled_bytes = 0
        if self.error is None:
            self._horizon = self.ledger.settled + self.machine.window.size
        self._relief.set()

    # ── publications ─────────────────────────────────────────────────────────────────────

    @property
    def has_room(self) -> bool:
        return self.made < self._horizon

    async def room(self) -> None:
        """Wait until one more publication may be staged."""
        while self.made >= self._horizon:
            self.check_open()
            self.flush()
            if self._stalled:
                self._relief.clear()
                await self._relief.wait()
            elif self.made >= self._horizon:
                await self.ledger.reach(self.ledger.settled + 1)

    def stage(self, body: Raw, sure: bool) -> int:
        """Accept a publication if there is room; returns its ordinal."""
        if sure is not self._staged_sure:
            self.flush()
            self._staged_sure = sure
        staged = self._staged
        if not staged:
            self.guard.check()
        staged.append(body)
        self.made = made = self.made + 1
        if len(staged) == 1:
            if made - 1 == self.ledger.settled:
                self.flush()  # everything is settled: a lone event should not wait for a batch
            else:
                self._loop.call_soon(self.flush)
        elif len(staged) >= BATCH_EVENTS:
            self.flush()
        return made

    def flush(self) -> None:
        staged = self._staged
        if not staged or self.error is not None:
            return
        self._staged = []
        ordinals = self.machine.publish(staged, self._staged_sure)
        if self.recorder is not None:
            self.recorder.published(ordinals, staged, self._staged_sure)
        self.carry_out()
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
        self._horizon = min(self._horizon, self.made)

    def check_open(self) -> None:
        self.guard.check()
        if self.error is not None:
            raise self.error

    # ── output of the machine ────────────────────────────────────────────────────────────

    def carry_out(self) -> None:
        effects = self.machine.take()
        if self.recorder is not None:
            self.recorder.watch(effects)
        if effects.send and self._line is not None:
            self._line.send([encode(frame) for frame in effects.send])
        for happening in effects.happened:
            self._tell(happening)
        if self._asked:
            self._asked = False
            self.progress.hurry()

    def _tell(self, happening: Notice) -> None:
        match happening:
            case Arrived():
                self.arrivals.arrived(happening)
            case StreamBatch():
                self.arrivals.brought(happening)
            case Missed():
                self.arrivals.missed(happening)
            case Settled():
                self.ledger.settle(happening)
                if not self._stalled and self.error is None:
                    self._horizon = happening.upto + self.machine.window.size
            case Resolved():
                self.registrations.resolved(happening)
                self.answers.resolved(happening)
            case ReceivedInvitation(invited):
                self.participation.called(invited)
            case Concluded():
                self.participation.concluded(happening)
            case Finished(handle):
                self.registrations.over(handle, None)
            case Welcomed():
                self._welcomed(happening)
            case Lapsed(handle, failure):
                entry = self.registrations.over(handle, error_of(failure))
                if failure.error != Aborted.__name__:
                    log.error("could not renew %r: %s", entry, failure.text)
            case ProgressDemand():
                self._asked = True
            case Redirected():
                self._redirected(happening)
            case ConnectionEnd(failure) | Dismissed(failure):
                self._parted(failure, for_good=isinstance(happening, Dismissed))

    def _redirected(self, news: Redirected) -> None:
        who, where = self.machine.client, news.address or "an unknown address"
        log.info("%s moves to %s at %s", who, news.broker, where)
        self.dialer.redirect(news.broker, news.address)
        self.relocation.redirected()
        if not self._first_welcome.done():
            self.dialer.keep()
        if self._line is not None:  # what is unsent will be sent there
            self._line.connection.abort(f"moved to {news.broker}")

    def lose_patience(self) -> None:
        """Wait no longer for a session that is on its way: open a new one."""
        self.machine.impatient()
        if self.machine.moving.impatient:
            self.dialer.hurry()
            if self._line is not None:
                self._line.connection.abort("the session did not arrive in time")

    def _welcomed(self, news: Welcomed) -> None:
        self.dialer.welcomed()
        self.relocation.welcomed()
        if self._line is not None:
            self._line.keep_pace(news.heartbeat_s)
        if news.how == "lost":
            self.session.lost_sessions += 1
            self.participation.lose_session()
            log.warning(
                "the session of %s was lost; a new one (%s) has the same filters, "
                "but events may have been missed",
                self.machine.client,
                news.epoch,
            )
            self._call(self.on_session_lost)
        if news.how == "resumed":
            self._call(self.on_resumed)
        if news.how == "adopted":
            self.session.resumed = True
            self.registrations.take_over()
        self.relieved()

    def _call(self, callback: Callable[[], object] | None) -> None:
        """Call the application, whose errors must not end its session."""
        if callback is None:
            return

        async def work() -> None:
            try:
                result = callback()
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception("a callback of %s failed", self.machine.client)

        task = self._loop.create_task(work())
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)

    def _parted(self, failure: Failure, *, for_good: bool) -> None:
        error = error_of(failure)
        if not self._first_welcome.done():
            self._first_welcome.set_exception(error)
        if for_good:
            self.end(error)
        elif self._line is not None:
            self._line.connection.close(failure.text)
