"""The broker under asyncio: carries out what the pure core asks for.

One read of a connection is one turn: all its frames are decoded, stepped through the core, and
what comes out is written once per connection at the end of the turn. The order of
`contract.Output` holds: nothing leaves before its facts are durable, and per connection
everything leaves in the order of the steps.

The driver always reads. Who does not read gets fewer events, is told how many it lost, and in
the end loses its connection; it never slows the others down.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, Protocol

from motet.broker.config import BrokerConfig
from motet.broker.core import BrokerCore
from motet.errors import (
    AddressError,
    Disconnected,
    FrameError,
    InvariantError,
    MotetError,
    PeerError,
    ProtocolError,
)
from motet.matching import ENGINE
from motet.protocol.contract import (
    Closed,
    Dialled,
    Input,
    Output,
    Received,
    SetTimer,
    TimerFired,
    TimerKey,
)
from motet.protocol.frames import Beat, Frame
from motet.protocol.link.messages import LinkHello, Publications
from motet.protocol.session.messages import (
    ClientHello,
    Goodnight,
    Publish,
    Status,
    StatusRequest,
)
from motet.runtime.addresses import transport_for
from motet.runtime.batches import decoded
from motet.runtime.clock import Clock, MonotonicClock
from motet.runtime.codec import encode
from motet.runtime.contact import Contact
from motet.runtime.journal import Journal, VolatileJournal
from motet.runtime.loop import settle_memory
from motet.runtime.outbox import SOFT
from motet.runtime.redial import Backoff
from motet.runtime.timers import Timers
from motet.runtime.traffic import Traffic
from motet.runtime.transport import Connection, Handler, Listening, Transport
from motet.runtime.wiring import Wiring

__all__ = ["BrokerDriver", "Core", "Wiring", "serve"]

log = logging.getLogger("motet.broker")

SILENT_BEATS = 3
"""A connection that is silent for so many heartbeats is dead."""
STATUSES_PER_TURN = 8
TICKS_PER_BEAT = 4
LISTED = 1000
"""Connections that a status describes one by one."""
LONGEST_TEXT = 1000
"""Reasons may quote what a peer sent; the last word must fit a frame whatever that was."""


class Core(Protocol):
    """What the driver needs of `BrokerCore`."""

    @property
    def config(self) -> BrokerConfig: ...

    def step(self, given: Input, now: float, /) -> Output: ...

    def status(self) -> dict[str, Any]: ...


def _farewell(error: PeerError) -> bytes:
    return encode(Goodnight(type(error).__name__, str(error)))


def _transport(address: str) -> Transport:
    return transport_for(address, _farewell)


class BrokerDriver:
    """`start`, then `stop`; `failure` is set, and `finished` returns, if the core is broken."""

    def __init__(
        self,
        core: Core,
        wiring: Wiring,
        *,
        clock: Clock | None = None,
        journal: Journal | None = None,
        transports: Callable[[str], Transport] = _transport,
    ) -> None:
        self.core = core
        self.wiring = wiring
        self.traffic = Traffic()
        self.contacts: dict[int, Contact] = {}
        self.failure: BaseException | None = None
        self._clock = clock or MonotonicClock()
        self._journal = journal or VolatileJournal()
        self._transports = transports
        self._timers = Timers(self._clock, self._ring)
        self._count = 0
        self._dropped_before = 0
        self._due: list[Contact] = []
        """Contacts with something to write at the end of this turn."""
        self._listening: Listening | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._finished = asyncio.Event()
        self._stopper: asyncio.Task[None] | None = None
        self._started_at = self._clock.now()

    # ── life ─────────────────────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        """As bound, with the real port."""
        return self._listening.address if self._listening else self.wiring.listen

    async def start(self) -> None:
        """Listen and begin to dial; `AddressError` if the address is taken."""
        self._journal.watch(self._facts_durable, self._fail)
        listen = self.wiring.listen
        self._listening = await self._transports(listen).listen(listen, self._contact)
        self._keep(self._ticking())
        for neighbour, address in self.wiring.dial.items():
            self._keep(self._dialling(neighbour, address))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_done)
        self._tasks.append(task)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._fail(failure)

    async def finished(self) -> None:
        """Wait until the driver has stopped; raises what made it stop, if it was a failure."""
        await self._finished.wait()
        if self.failure is not None:
            raise InvariantError(f"the broker failed: {self.failure!r}") from self.failure

    async def stop(self, error: str = "Disconnected", text: str = "the broker stops") -> None:
        """Tell everybody, close everything. A second call waits for the first."""
        if self._stopping:
            await self._finished.wait()
            return
        self._stopping = True
        try:
            await self._wind_up()
            contacts = list(self.contacts.values())
            for contact in contacts:
                contact.outbox.last_word(Goodnight(error, text))
                contact.connection.close(text)
            await asyncio.gather(*(contact.gone.wait() for contact in contacts))
        finally:
            self._finished.set()

    async def _wind_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._timers.clear()
        if self._listening is not None:
            await self._listening.close()
        if self.failure is None:
            try:
                await self._journal.close()
            except Exception as failure:
                self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        """Our own state cannot be trusted any more: say nothing else, and end."""
        if self.failure is None:
            self.failure = failure
            log.critical("the broker fails and stops", exc_info=failure)
            text = "the broker failed and stops; its log says why"
            self._stopper = asyncio.ensure_future(self.stop(InvariantError.__name__, text))

    # ── connections ──────────────────────────────────────────────────────────────────────

    def _contact(self, connection: Connection, dialled: str | None = None) -> Contact:
        self._count += 1
        contact = Contact(
            self,
            self._count,
            connection,
            self._clock.now(),
            dialled=dialled,
            bound_bytes=self.wiring.max_backlog_bytes,
            traffic=self.traffic,
        )
        self.contacts[contact.number] = contact
        return contact

    async def _dialling(self, neighbour: str, address: str) -> None:
        """One connection after the other to one neighbour, for ever."""
        backoff = Backoff()
        made: list[Contact] = []

        def accept(connection: Connection) -> Handler:
            made.append(self._contact(connection, neighbour))
            self._turn(Dialled(made[-1].number, neighbour))
            return made[-1]

        while True:
            try:
                await self._transports(address).connect(address, accept)
            except (Disconnected, AddressError) as problem:
                log.info("%s is not reached: %s", neighbour, problem)
            else:
                contact = made[-1]
                made.clear()
                await contact.gone.wait()
                if contact.greeted:
                    backoff.reset()
            await asyncio.sleep(backoff.wait_s())

    # ── turns ────────────────────────────────────────────────────────────────────────────

    def read(self, contact: Contact, bodies: Sequence[bytes]) -> None:
        """One read of one connection is one turn."""
        if self._stopping or contact.outbox.ended:
            return
        now = self._clock.now()
        self.traffic.frames_in += len(bodies)
        frames, wrong = decoded(bodies)
        for frame in frames:
            self._receive(contact, frame, now)
            if contact.outbox.ended or self.failure is not None:
                break
        if wrong is not None:
            self._refuse(contact, wrong, now)
        self._flush()

    def _receive(self, contact: Contact, frame: Frame, now: float) -> None:
        if isinstance(frame, Publish):
            self.traffic.events_in += len(frame.bodies)
        elif isinstance(frame, Publications):
            self.traffic.events_in += len(frame.batch)
        elif isinstance(frame, Beat):
            return
        elif isinstance(frame, Goodnight):
            contact.hear_goodnight(frame)
            return
        elif isinstance(frame, StatusRequest):
            contact.since = now  # who only asks for the status needs no hello
            self._tell_status(contact)
            return
        self._step(Received(contact.number, frame), now)
        if isinstance(frame, ClientHello | LinkHello) and not contact.outbox.ended:
            contact.hear_hello(frame)

    def _tell_status(self, contact: Contact) -> None:
        """It costs more to answer than to ask, so nobody may ask in bulk."""
        if contact.outbox.unwritten(Status) >= STATUSES_PER_TURN:
            text = "asked for the status too often at once: wait for the answer"
            self._refuse(contact, ProtocolError(text), self._clock.now())
            return
        try:
            state = self.status()
        except Exception as failure:
            self._fail(failure)
        else:
            self._put(contact, Status(state), 0)

    def closed(self, contact: Contact) -> None:
        """The transport says that a connection is gone."""
        self.contacts.pop(contact.number, None)
        self._dropped_before += contact.outbox.dropped
        if not contact.outbox.ended:
            self._turn(Closed(contact.number))

    def expel(self, contact: Contact, error: MotetError) -> None:
        self._refuse(contact, error, self._clock.now())
        self._flush()

    def _refuse(self, contact: Contact, error: MotetError, now: float) -> None:
        log.info("%s is closed: %s: %s", contact, type(error).__name__, error)
        self._end(contact, type(error).__name__, str(error), now)

    def _end(self, contact: Contact, error: str, text: str, now: float) -> None:
        """The last word to a connection. For the core it is gone from here on."""
        if not contact.outbox.ended:
            self._put(contact, Goodnight(error, text[:LONGEST_TEXT]), 0)
            self._step(Closed(contact.number), now)

    def _ring(self, key: TimerKey) -> None:
        self._turn(TimerFired(key))

    def _turn(self, given: Input) -> None:
        if not self._stopping:
            self._step(given, self._clock.now())
            self._flush()

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def _step(self, given: Input, now: float) -> None:
        if self.failure is not None:
            return
        try:
            output = self.core.step(given, now)
        except PeerError as error:
            contact = self.contacts.get(getattr(given, "connection", 0))
            if contact is None:
                self._fail(error)
            else:
                self._refuse(contact, error, now)
            return
        except Exception as failure:
            self._fail(failure)
            return
        try:
            self._carry(output, now)
        except Exception as failure:  # the journal takes no facts: nothing may leave
            self._fail(failure)

    def _carry(self, output: Output, now: float) -> None:
        """In the order of the fields of `Output`."""
        own = self._journal.append(output.persist) if output.persist else 0
        contacts = self.contacts
        for frames in (output.send, output.deliver):
            for number, frame in frames:
                contact = contacts.get(number)
                if contact is not None:
                    self._put(contact, frame, own)
        for timer in output.timers:
            if type(timer) is SetTimer:
                self._timers.set(timer.key, timer.at)
            else:
                self._timers.cancel(timer.key)
        for close in output.close:
            contact = contacts.get(close.connection)
            if contact is not None:
                self._end(contact, close.error, close.text, now)

    def _put(self, contact: Contact, frame: Frame, own: int) -> None:
        """Queue a frame behind the facts of its own step; what tells of durable state (an
        acknowledgement, a hello) waits for all facts so far."""
        journal = self._journal
        position = own if type(frame) in SOFT else journal.appended
        if contact.outbox.put(frame, position, journal.durable):
            self._due.append(contact)

    def _flush(self) -> None:
        while self._due:
            due, self._due = self._due, []
            for contact in due:
                if self.failure is None:
                    self._write(contact)

    def _write(self, contact: Contact) -> None:
        try:
            contact.outbox.flush()
        except FrameError as error:  # what it must hear next fits no frame: it cannot go on
            self._refuse(contact, error, self._clock.now())
        except Exception as failure:  # a frame of ours that does not encode
            self._fail(failure)

    def _facts_durable(self) -> None:
        durable = self._journal.durable
        for contact in list(self.contacts.values()):
            if contact.outbox.holding:
                contact.outbox.release(durable)
                self._due.append(contact)
        self._flush()

    # ── the pulse ────────────────────────────────────────────────────────────────────────

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(self.core.config.heartbeat_s / TICKS_PER_BEAT)
            self._tick(self._clock.now())

    def _tick(self, now: float) -> None:
        self.traffic.sample(now)
        heartbeat_s = self.core.config.heartbeat_s
        for contact in list(self.contacts.values()):
            problem = contact.problem(now, self.wiring.hello_s, SILENT_BEATS * heartbeat_s)
            if problem is not None:
                self.expel(contact, problem)
            elif contact.idle(now, heartbeat_s):
                self._put(contact, Beat(), 0)
        self._flush()

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def status(self) -> dict[str, Any]:
        """The core's state, with what only the driver knows beside it."""
        now = self._clock.now()
        listed = [contact.describe() for contact in islice(self.contacts.values(), LISTED)]
        return self.core.status() | {
            "process": {
                "pid": os.getpid(),
                "address": self.address,
                "uptime_s": round(now - self._started_at, 3),
                "engine": ENGINE,
                "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
                "timers": len(self._timers),
                "unsynced_facts": self._journal.appended - self._journal.durable,
            },
            "traffic": self.traffic.totals() | self.traffic.rates(now),
            "dropped_events": self._dropped_before
            + sum(contact.outbox.dropped for contact in self.contacts.values()),
            "connections": listed,
            "connections_total": len(self.contacts),
        }


async def serve(
    config: BrokerConfig,
    wiring: Wiring,
    *,
    journal: Journal | None = None,
    ready: Callable[[BrokerDriver], None] | None = None,
) -> int:
    """Run one broker until SIGTERM or SIGINT; the exit status of its process.

    `ready` is called once the broker listens. Raises `AddressError` if it cannot.
    """
    driver = BrokerDriver(BrokerCore(config), wiring, journal=journal)
    await driver.start()
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(
            number, lambda: stopping.append(asyncio.ensure_future(driver.stop()))
        )
    settle_memory()
    if ready is not None:
        ready(driver)
    try:
        await driver.finished()
    except InvariantError:
        return 1
    return 0
