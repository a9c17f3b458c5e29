"""The broker under asyncio: carries out what the pure core asks for.

One read of a connection is one turn: all its frames are decoded and stepped through the core. What
comes out of all turns that the loop takes at once is written once per connection, behind the last
of them. The order of `contract.Output` holds: nothing leaves before its facts are durable, and per
connection everything leaves in the order of the steps.

The driver always reads. Who does not read gets fewer events, is told how many it lost, and in
the end loses its connection; it never slows the others down.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import asdict

from motet.broker.config import CELLULAR, SETTLED, BrokerConfig
from motet.broker.dialling import Dialling, transport
from motet.broker.driven import Core, passed
from motet.broker.pubend import Confirms, Desk, Pubend
from motet.broker.reading import REQUESTS, Readings
from motet.broker.remembered import Remembered
from motet.broker.staging import STAGING, Stagings
from motet.broker.writing import Soon, Writing, behind_the_rest
from motet.errors import (
    FrameError,
    InvariantError,
    MisuseError,
    MotetError,
    PeerError,
    ProtocolError,
    StaleState,
    StorageError,
)
from motet.matching import ENGINE
from motet.protocol.cell.messages import MemberHello
from motet.protocol.contract import (
    Closed,
    Dialled,
    Input,
    Output,
    Received,
    Reconfigured,
    TimerFired,
    TimerKey,
)
from motet.protocol.frames import Beat, Frame
from motet.protocol.link.messages import LinkHello
from motet.protocol.session.messages import (
    ClientHello,
    Goodnight,
    Status,
    StatusRequest,
)
from motet.runtime.batches import decoded
from motet.runtime.clock import Clock, SteadyClock
from motet.runtime.contact import Contact
from motet.runtime.journal import Journal, VolatileJournal
from motet.runtime.outbox import is_soft
from motet.runtime.pubend import Retention
from motet.runtime.timers import Timers
from motet.runtime.traffic import Traffic, events_of
from motet.runtime.transport import Connection, Listening, Transport
from motet.runtime.wiring import Wiring

__all__ = ["BrokerDriver", "Core", "Wiring"]

log = logging.getLogger("motet.broker")

SILENT_BEATS = 3
"""A connection that is silent for so many heartbeats is dead."""
STATUSES_PER_TURN = 8
TICKS_PER_BEAT = 4
_HELLOS = (ClientHello, LinkHello, MemberHello)
LISTED = 1000
"""Connections that a status describes one by one."""
LONGEST_TEXT = 1000
"""Reasons may quote what a peer sent; the last word must fit a frame whatever that was."""


class BrokerDriver:
    """`start`, then `stop`; `failure` is set, and `finished` returns, if the core is broken."""

    def __init__(
        self,
        core: Core,
        wiring: Wiring,
        *,
        clock: Clock | None = None,
        journal: Journal | None = None,
        pubend: Pubend | None = None,
        remembered: Remembered | None = None,
        transports: Callable[[str], Transport] = transport,
        soon: Soon = behind_the_rest,
        stagings: Stagings | None = None,
    ) -> None:
        self.core = core
        self.wiring = wiring
        self.traffic = Traffic()
        self.contacts: dict[int, Contact] = {}
        self.failure: BaseException | None = None
        self._clock = clock or SteadyClock()
        self._journal = journal or VolatileJournal()
        self._transports = transports
        self._writing = Writing(self._write, soon)
        self._dialling = Dialling(transports, self._meet, self._keep)
        self.reloads: list[str] = []
        """Each time that the topology was read again: what was wrong with it, if anything."""
        self._desk = Desk(pubend, self._turn, self._fail)
        self._readings = Readings(core.config, self._desk.readable, self._tell)
        self._stagings = stagings or Stagings(core.config)
        self._stagings.open(self._tell, self._turn, self._fail)
        self._beside: dict[type, Any] = {
            **dict.fromkeys(REQUESTS, self._readings),
            **dict.fromkeys(STAGING, self._stagings),
        }
        self._remembered = remembered
        self._timers = Timers(self._clock, self._ring)
        self._count = self._dropped_before = 0
        self._holding: dict[int, Contact] = {}
        """Contacts with something that waits for the journal."""
        self._confirms = Confirms(self._journal, self._turn, self._desk.forget)
        self._listening: Listening | None = None
        self.companions: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Work that begins when the broker listens and ends with it."""
        self.retain: Callable[[Retention], None] = lambda _: None
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
        try:
            self._journal.watch(self._confirms.before(self._facts_durable), self._fail)
            self._desk.open()
            now, listen = self._clock.now(), self.wiring.listen
            self._carry(self.core.recover(now, self._remembered), now)
            self._listening = await self._transports(listen).listen(listen, self._contact)
        except BaseException:
            self._timers.clear()
            await self._journal.abandon()
            await self._desk.abandon()
            raise
        for work in (self._ticking, *self.companions):
            self._keep(work())
        self._dialling.aim(self.wiring.dial)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_done)
        self._tasks.append(task)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._fail(failure)

    async def finished(self) -> None:
        """Wait until the driver has stopped; raises what made it stop, if it was a failure."""
        await self._finished.wait()
        if isinstance(self.failure, StorageError):
            raise self.failure
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
            if self.failure is not None:
                await self._journal.abandon()
                await self._desk.abandon()
        finally:
            self._finished.set()

    async def _wind_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._readings.close()
        await self._stagings.close()
        self._timers.clear()
        if self._listening is not None:
            await self._listening.close()
        if self.failure is None:
            try:
                await self._journal.close()
                await self._desk.close()
            except Exception as failure:
                self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        """Our own state cannot be trusted any more: say nothing else, and end."""
        if self.failure is None:
            self.failure = failure
            trace = None if isinstance(failure, StorageError) else failure
            log.critical("the broker fails and stops: %s", failure, exc_info=trace)
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

    def _meet(self, connection: Connection, neighbour: str) -> Contact:
        """A neighbour that we called has answered."""
        contact = self._contact(connection, neighbour)
        self._turn(Dialled(contact.number, neighbour))
        return contact

    def reconfigure(
        self, config: BrokerConfig, wiring: Wiring, durability: str | None = None
    ) -> None:
        """Take other neighbours, or other addresses to call them at, while the broker runs.

        `MisuseError`, and nothing has changed, if that cannot be done to a running broker, or if
        a neighbour is to go from which something is still in force.
        """
        kept = self._journal.describe()["durability"]
        ours = asdict(self.core.config) | {"listen": self.wiring.listen, "durability": kept}
        asked = asdict(config) | {"listen": wiring.listen, "durability": durability or kept}
        for what in ("name", "listen", *CELLULAR, *SETTLED):
            if asked[what] != ours[what]:
                raise MisuseError(
                    f"the {what} of {self.core.config.name} is {ours[what]!r} and cannot become "
                    f"{asked[what]!r} while it runs; stop it and start it again"
                )
        objection = self.core.objection_to(config.neighbours)
        if objection:
            raise MisuseError(objection)
        self._turn(Reconfigured(config.neighbours))
        self.wiring = dataclasses.replace(self.wiring, dial=wiring.dial)
        for neighbour in self._dialling.aim(wiring.dial):
            for contact in [c for c in self.contacts.values() if c.dialled == neighbour]:
                self._end(contact, "", "called elsewhere from now on", self._clock.now())
        self._writing.now()

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
        self._writing.soon()

    def _receive(self, contact: Contact, frame: Frame, now: float) -> None:
        self.traffic.events_in += events_of(frame)
        if type(frame) is Beat:
            return
        if type(frame) is Goodnight:
            contact.hear_goodnight(frame)
            if contact.of_broker and frame.error == StaleState.__name__:
                self._fail(StaleState(frame.text))
            return
        if type(frame) is StatusRequest:
            contact.since = now  # who only asks for the status needs no hello
            self._tell_status(contact, frame.clients)
            return
        if (beside := self._beside.get(type(frame))) is not None:
            contact.hear_reader()
            if (wrong := beside.take(contact, frame)) is not None:
                self._refuse(contact, wrong, now)
            return
        self._step(Received(contact.number, frame), now)
        if isinstance(frame, _HELLOS) and not contact.outbox.ended:
            contact.hear_hello(frame)

    def _tell_status(self, contact: Contact, clients: tuple[str, ...]) -> None:
        """It costs more to answer than to ask, so nobody may ask in bulk."""
        if contact.outbox.unwritten(Status) >= STATUSES_PER_TURN:
            text = "asked for the status too often at once: wait for the answer"
            self._refuse(contact, ProtocolError(text), self._clock.now())
            return
        try:
            state = self.status(clients)
        except Exception as failure:
            self._fail(failure)
        else:
            self._put(contact, Status(state), 0)

    def _tell(self, contact: Contact, answer: Frame) -> None:
        self._put(contact, answer, 0)
        self._writing.now()

    def closed(self, contact: Contact) -> None:
        """The transport says that a connection is gone."""
        self.contacts.pop(contact.number, None)
        self._holding.pop(contact.number, None)
        self._dropped_before += contact.outbox.dropped
        if not contact.outbox.ended:
            self._turn(Closed(contact.number))

    def expel(self, contact: Contact, error: MotetError) -> None:
        self._refuse(contact, error, self._clock.now())
        self._writing.now()

    def _refuse(self, contact: Contact, error: MotetError, now: float) -> None:
        self._end(contact, type(error).__name__, str(error), now)

    def _end(self, contact: Contact, error: str, text: str, now: float) -> None:
        """The last word to a connection. For the core it is gone from here on."""
        if not contact.outbox.ended:
            if error:
                log.info("%s is closed: %s: %s", contact, error, text[:LONGEST_TEXT])
            self._put(contact, Goodnight(error, text[:LONGEST_TEXT]), 0)
            self._step(Closed(contact.number), now)

    def _ring(self, key: TimerKey) -> None:
        self._turn(TimerFired(key))

    def _turn(self, given: Input) -> None:
        if not self._stopping:
            self._step(given, self._clock.now())
            self._writing.soon()

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
            if self._holding and self.core.config.mates:
                self._facts_durable()
        except Exception as failure:  # the journal takes no facts: nothing may leave
            self._fail(failure)

    def _carry(self, output: Output, now: float) -> None:
        """In the order of the fields of `Output`."""
        own = self._journal.append(output.persist) if output.persist else 0
        self._confirms.add(own, output)
        contacts = self.contacts
        for frames in (output.send, output.deliver):
            for number, frame in frames:
                contact = contacts.get(number)
                if contact is not None:
                    self._put(contact, frame, own)
        if output.log or output.reads:
            self._desk.carry(output)
        self._stagings.carry(output.staged)
        if output.timers:
            self._timers.carry(output.timers)
        for close in output.close:
            contact = contacts.get(close.connection)
            if contact is not None:
                self._end(contact, close.error, close.text, now)

    def _put(self, contact: Contact, frame: Frame, own: int) -> None:
        """Queue a frame behind the facts of its own step; what tells of durable state (an
        acknowledgement, a hello) waits for all facts so far."""
        journal = self._journal
        position = own if own or is_soft(frame) else journal.appended
        if contact.outbox.put(frame, position, passed(self.core, journal, contact)):
            self._writing.due(contact)
        elif contact.outbox.holding:
            self._holding[contact.number] = contact

    def _write(self, contact: Contact) -> None:
        if self.failure is not None:
            return
        try:
            contact.outbox.flush()
        except FrameError as error:  # what it must hear next fits no frame: it cannot go on
            self._refuse(contact, error, self._clock.now())
        except Exception as failure:  # a frame of ours that does not encode
            self._fail(failure)

    def _facts_durable(self) -> None:
        waiting, self._holding = self._holding, {}
        for contact in waiting.values():
            contact.outbox.release(passed(self.core, self._journal, contact))
            self._writing.due(contact)
            if contact.outbox.holding:
                self._holding[contact.number] = contact
        self._writing.now()

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
        self._writing.now()
        self._desk.let_go(self.core.done_with())

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]:
        """The core's state, with what only the driver knows beside it."""
        now = self._clock.now()
        listed = [contact.describe() for contact in islice(self.contacts.values(), LISTED)]
        return self.core.status(clients) | {
            "process": {
                "pid": os.getpid(),
                "address": self.address,
                "uptime_s": round(now - self._started_at, 3),
                "engine": ENGINE,
                "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
                "timers": len(self._timers),
                "reloads": len(self.reloads),
                "reload_error": self.reloads[-1] if self.reloads else "",
            },
            "journal": self._journal.describe(),
            "pubend": self._desk.describe(),
            "traffic": self.traffic.totals() | self.traffic.rates(now),
            "dropped_events": self._dropped_before
            + sum(contact.outbox.dropped for contact in self.contacts.values()),
            "connections": listed,
            "connections_total": len(self.contacts),
        }
