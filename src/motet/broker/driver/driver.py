"""A broker, or a site of a sequencer, under asyncio: carries out the outputs of the pure core.

One read of a connection is one turn: all its frames are decoded and stepped through the core. The
outputs of all turns in one iteration of the loop are written once per connection, after the last of
them. The order of `contract.Output` holds: nothing leaves before its facts are durable, and per
connection everything leaves in the order of the steps.

The driver always reads. A peer that does not read gets fewer events, is told how many it lost, and
in the end loses its connection; it never slows down the other peers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import islice
from math import ceil
from typing import Any, Protocol

from msgspec.structs import asdict

from motet.broker.driver.contact import Contact, Dialling, TrafficCounters, decoded, transport
from motet.broker.driver.history import SessionHistory
from motet.broker.driver.pubend import Confirms, LettingGo, Pubend
from motet.broker.driver.side_requests import REQUESTS, STAGING, Readings, Stagings
from motet.broker.folder.journal import VOLATILE, Journal
from motet.broker.overlay.topology import Wiring
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
from motet.protocol.config import CELLULAR, SETTLED, BrokerConfig
from motet.protocol.contract import (
    CancelTimer,
    Close,
    Closed,
    Dialled,
    Fact,
    Input,
    Logged,
    LogRead,
    Output,
    Received,
    Reconfigured,
    Remembered,
    SetTimer,
    TimerFired,
    TimerKey,
)
from motet.protocol.delivery.stream import ReadWanted
from motet.protocol.frames import Beat, Frame
from motet.protocol.room import Objection
from motet.protocol.session.messages import Farewell, Status, StatusRequest
from motet.protocol.traits import TRAITS
from motet.runtime.clock import SteadyClock
from motet.runtime.pubend import Retention
from motet.runtime.transport import Connection, Listening, Transport

log = logging.getLogger("motet.broker")

SILENT_BEATS = 3
"""A connection is dead after this many heartbeats of silence."""
SHORTEST_SILENCE_S = 1.0
"""A lower limit for short heartbeats: a busy machine may be late by several of them."""
STATUSES_PER_TURN = 8
TICKS_PER_BEAT = 4
LISTED = 1000
"""The number of connections that a status describes one by one."""
LONGEST_TEXT = 1000
"""Reasons may quote a peer's input; the last frame must fit the limit whatever the peer sent."""
SHORTEST_S = 0.001
"""Event loops round the time of an alarm to their own resolution, and may be early by less."""

Soon = Callable[[Callable[[], None]], Any]


def behind_the_rest(work: Callable[[], None]) -> None:
    """Run it after all input of this iteration of the loop."""
    asyncio.get_running_loop().call_soon(work)


class VolatileJournal:
    """Stores nothing: a broker that stops has forgotten everything. In exchange, no frame waits."""

    def __init__(self) -> None:
        self.appended = self.durable = 0

    def append(self, facts: Sequence[Fact]) -> int:
        self.appended = self.durable = self.appended + len(facts)
        return self.appended

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Nothing becomes durable later here."""

    def describe(self) -> dict[str, Any]:
        return {"durability": VOLATILE, "appended": self.appended, "durable": self.durable}

    async def close(self) -> None:
        """Nothing to store."""

    async def abandon(self) -> None:
        """Nothing to release."""


class CoreConfig(Protocol):
    """Of any machine that the driver runs."""

    @property
    def name(self) -> str: ...

    @property
    def heartbeat_s(self) -> float: ...

    @property
    def mates(self) -> tuple[str, ...]: ...


class Core(Protocol):
    """The part of a core that the driver needs: that of a broker, of a site, or a small one of a
    test."""

    @property
    def config(self) -> CoreConfig: ...

    def step(self, given: Input, now: float, /) -> Output: ...

    def recover(self, now: float, remembered: Remembered | None = None) -> Output: ...

    def listens_at(self, address: str) -> None: ...

    def done_with(self) -> int: ...

    def withheld(self) -> int: ...

    def outlives(self, error: str, /) -> bool: ...

    def objection_to(self, neighbours: tuple[str, ...]) -> Objection | None: ...

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]: ...


class OutputHistory(Protocol):
    """Records outputs of a core, each once its facts, and all before them, are durable."""

    def wrote(self, position: int, output: Output) -> None: ...

    def durable(self, position: int) -> None: ...

    def close(self) -> None: ...


class BrokerDriver:
    """Use `start`, then `stop`. If the core fails, `failure` is set and `finished` returns. `what`
    it runs: only brokers answer late readers, stage rows and are reconfigured."""

    def __init__(
        self,
        core: Core,
        wiring: Wiring,
        *,
        clock: SteadyClock | None = None,
        journal: Journal | None = None,
        pubend: Pubend | None = None,
        remembered: Remembered | None = None,
        transports: Callable[[str], Transport] = transport,
        soon: Soon = behind_the_rest,
        stagings: Stagings | None = None,
        what: str = "broker",
    ) -> None:
        self.core = core
        self.what = what
        self.wiring = wiring
        self.traffic = TrafficCounters()
        self.contacts: dict[int, Contact] = {}
        self.failure: BaseException | None = None
        self._ahead_s = (clock or SteadyClock()).ahead_s
        self._journal = journal or VolatileJournal()
        self._transports = transports
        self._soon = soon
        self._due: dict[int, Contact] = {}
        """Contacts with something to write, in the order in which they became due."""
        self._is_writing_soon = False
        self._dialling = Dialling(transports, self._meet, self._keep)
        self.reloads: list[str] = []
        """One entry per reload of the topology: its error, or ""."""
        self._pubend = pubend
        self._readings: Readings | None = None
        self._stagings: Stagings | None = None
        self._beside: dict[type, Any] = {}
        if isinstance(core.config, BrokerConfig):
            readable = pubend.readable if pubend else None
            self._readings = Readings(core.config, readable, self._tell)
            self._stagings = stagings or Stagings(core.config)
            self._stagings.open(self._tell, self._turn, self._fail)
            self._beside |= dict.fromkeys(REQUESTS, self._readings.requests)
            self._beside |= dict.fromkeys(STAGING, self._stagings.requests)
        self._remembered = remembered
        self._timers: dict[TimerKey, asyncio.TimerHandle] = {}
        self._count = self._dropped_before = 0
        self._holding: dict[int, Contact] = {}
        """Contacts with frames that wait for the journal."""
        self._mates = core.config.mates
        self._passed_before = 0
        """What had passed when held frames were last released."""
        self._aims: Mapping[str, str] | None = None
        """Whom the core wants to be dialled, instead of those of the wiring."""
        self._confirms = Confirms(self._journal, self._turn, self._forget)
        self._letting_go = LettingGo(self._journal)
        self._listening: Listening | None = None
        self._inside: Listening | None = None
        """For peers in this process."""
        self.companions: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Tasks that start when the broker listens and end with it."""
        self.accounts: dict[str, Callable[[], Any]] = {}
        """Further parts of the status, by name."""
        self.retain: Callable[[Retention], None] = lambda _: None
        self.lodgers: SessionHistory | None = None
        """Records the sessions of this broker, if a history is wanted."""
        self.history: OutputHistory | None = None
        """Records what the core has told, if a history of that is wanted."""
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._finished = asyncio.Event()
        self._stopper: asyncio.Task[None] | None = None
        self._started_at = self._now()

    def _now(self) -> float:
        """Seconds that never run backwards: see `SteadyClock`."""
        return time.monotonic() + self._ahead_s

    # ── start and stop ───────────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        """The address as bound, with the real port."""
        return self._listening.address if self._listening else self.wiring.listen

    async def start(self) -> None:
        """Listen and start to dial; raises `AddressError` if the address is taken."""
        try:
            self._journal.watch(self._confirms.before(self._facts_durable), self._fail)
            if self._pubend is not None:
                self._pubend.watch(lambda count: self._turn(Logged(count)), self._fail)
            now, listen = self._now(), self.wiring.listen
            self._carry(self.core.recover(now, self._remembered), now)
            self._listening = await self._transports(listen).listen(listen, self._contact)
            self.core.listens_at(self.address)
        except BaseException:
            self._cancel_timers()
            await self._abandon()
            raise
        for work in (self._ticking, *self.companions):
            self._keep(work())
        self._dialling.aim(self.wiring.dial if self._aims is None else self._aims)

    async def listen_inside(self) -> str:
        """The address at which code in this process connects as a part of this broker."""
        if self._inside is None:
            address = f"inproc://{self.core.config.name}-{secrets.token_hex(8)}"
            accept = partial(self._contact, inside=True)
            self._inside = await self._transports(address).listen(address, accept)
        return self._inside.address

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_done)
        self._tasks.append(task)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._fail(failure)

    async def finished(self) -> None:
        """Wait until the driver has stopped; raises the failure that stopped it, if any."""
        await self._finished.wait()
        if isinstance(self.failure, StorageError):
            raise self.failure
        if self.failure is not None:
            raise InvariantError(f"the {self.what} failed: {self.failure!r}") from self.failure

    async def stop(self, error: str = "Disconnected", text: str = "") -> None:
        """Send every peer a `Farewell` and close everything. A second call waits for the first."""
        text = text or f"the {self.what} stops"
        if self._stopping:
            await self._finished.wait()
            return
        self._stopping = True
        try:
            await self._wind_up()
            contacts = list(self.contacts.values())
            for contact in contacts:
                contact.outbox.last_word(Farewell(error, text))
                contact.connection.close(text)
            await asyncio.gather(*(contact.gone.wait() for contact in contacts))
            if self.failure is not None:
                await self._abandon()
        finally:
            self._finished.set()

    async def _abandon(self) -> None:
        """The core has failed: release the logs without an orderly end."""
        await self._journal.abandon()
        if self._pubend is not None:
            await self._pubend.abandon()

    async def _wind_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for beside in (self._readings, self._stagings):
            if beside is not None:
                await beside.close()
        self._cancel_timers()
        for listening in (self._listening, self._inside):
            if listening is not None:
                await listening.close()
        if self.failure is None:
            try:
                await self._journal.close()
                if self.lodgers is not None:
                    self.lodgers.close()
                if self.history is not None:
                    self.history.durable(self._told())
                    self.history.close()
                if self._pubend is not None:
                    await self._pubend.close()
            except Exception as failure:
                self._fail(failure)

    def _fail(self, failure: BaseException) -> None:
        """Our own state can no longer be trusted: send nothing else, and stop."""
        if self.failure is None:
            self.failure = failure
            trace = None if isinstance(failure, StorageError) else failure
            log.critical("the %s fails and stops: %s", self.what, failure, exc_info=trace)
            text = f"the {self.what} failed and stops; its log says why"
            self._stopper = asyncio.ensure_future(self.stop(InvariantError.__name__, text))

    # ── connections ──────────────────────────────────────────────────────────────────────

    def _contact(
        self, connection: Connection, dialled: str | None = None, *, inside: bool = False
    ) -> Contact:
        self._count += 1
        contact = Contact(
            self._read,
            self._closed,
            self._count,
            connection,
            self._now(),
            dialled=dialled,
            inside=inside,
            bound_bytes=self.wiring.max_backlog_bytes,
            traffic=self.traffic,
        )
        self.contacts[contact.number] = contact
        return contact

    def _meet(self, connection: Connection, neighbour: str) -> Contact:
        """A neighbour that we dialled has answered."""
        contact = self._contact(connection, neighbour)
        self._turn(Dialled(contact.number, neighbour))
        return contact

    def reconfigure(
        self, config: BrokerConfig, wiring: Wiring, durability: str | None = None
    ) -> None:
        """Change neighbours, or the addresses at which they are dialled, while the broker runs.

        Raises `MisuseError`, and changes nothing, if a running broker cannot be changed like that,
        or if operations of a neighbour to be removed are still in force.
        """
        if not isinstance(self.core.config, BrokerConfig):
            raise MisuseError(f"a {self.what} cannot be changed while it runs; start it again")
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
        if objection is not None:
            raise objection.exception()
        self._turn(Reconfigured(config.neighbours))
        self.wiring = dataclasses.replace(self.wiring, dial=wiring.dial)
        for neighbour in self._dialling.aim(wiring.dial):
            for contact in [c for c in self.contacts.values() if c.dialled == neighbour]:
                self._end(contact, "", "called elsewhere from now on", self._now())
        self._write_now()

    # ── turns ────────────────────────────────────────────────────────────────────────────

    def _read(self, contact: Contact, bodies: Sequence[bytes]) -> None:
        """One read of one connection is one turn."""
        outbox = contact.outbox
        if self._stopping or outbox.ended:
            return
        now = time.monotonic() + self._ahead_s
        self.traffic.frames_in += len(bodies)
        frames, wrong = decoded(bodies)
        for frame in frames:
            self._receive(contact, frame, now)
            if outbox.ended or self.failure is not None:
                break
        if wrong is not None:
            self._refuse(contact, wrong, now)
        self._write_soon()

    def _receive(self, contact: Contact, frame: Frame, now: float) -> None:
        kind = type(frame)
        traits = TRAITS[kind]
        if traits.events is not None:
            self.traffic.events_in += len(traits.events(frame))
        if kind is Beat:
            return
        if type(frame) is Farewell:
            contact.hear_farewell(frame)
            if contact.kind == "broker" and not self.core.outlives(frame.error):
                self._fail(StaleState(frame.text))
            return
        if type(frame) is StatusRequest:
            contact.since = now  # a peer that only asks for the status needs no hello
            self._tell_status(contact, frame.clients)
            return
        if (beside := self._beside.get(kind)) is not None:
            contact.hear_reader()
            if (wrong := beside.take(contact, frame)) is not None:
                self._refuse(contact, wrong, now)
            return
        if traits.inside and not contact.inside:
            text = f"{kind.__name__} comes from the broker's own process only"
            self._refuse(contact, ProtocolError(text), now)
            return
        if traits.hello is not None and not contact.name:
            contact.name = traits.hello(frame)[1]  # what the step sends may depend on it
        self._step(Received(contact.number, frame), now)
        if traits.hello is not None and not contact.outbox.ended:
            contact.hear_hello(*traits.hello(frame))

    def _tell_status(self, contact: Contact, clients: tuple[str, ...]) -> None:
        """An answer costs more than a request, so requests in bulk are refused."""
        if contact.outbox.unwritten(Status) >= STATUSES_PER_TURN:
            text = "asked for the status too often at once: wait for the answer"
            self._refuse(contact, ProtocolError(text), self._now())
            return
        try:
            state = self.status(clients)
        except Exception as failure:
            self._fail(failure)
        else:
            self._put(contact, Status(state), 0)

    def _tell(self, contact: Contact, answer: Frame) -> None:
        self._put(contact, answer, 0)
        self._write_now()

    def _closed(self, contact: Contact) -> None:
        """The transport reports that a connection is gone."""
        self.contacts.pop(contact.number, None)
        self._holding.pop(contact.number, None)
        self._dropped_before += contact.outbox.dropped
        if not contact.outbox.ended:
            self._turn(Closed(contact.number))

    def expel(self, contact: Contact, error: MotetError) -> None:
        self._refuse(contact, error, self._now())
        self._write_now()

    def _refuse(self, contact: Contact, error: MotetError, now: float) -> None:
        self._end(contact, type(error).__name__, str(error), now)

    def _end(self, contact: Contact, error: str, text: str, now: float) -> None:
        """Send the last frame to a connection. For the core the connection is gone from here on."""
        if not contact.outbox.ended:
            if error:
                log.info("%s is closed: %s: %s", contact, error, text[:LONGEST_TEXT])
            if self._mates:  # what waits for them must not leave when they are given up
                self._holding.pop(contact.number, None)
                contact.outbox.last_word(Farewell(error, text[:LONGEST_TEXT]))
            else:
                self._put(contact, Farewell(error, text[:LONGEST_TEXT]), 0)
            self._step(Closed(contact.number), now)

    def _turn(self, given: Input) -> None:
        if not self._stopping:
            self._step(given, time.monotonic() + self._ahead_s)
            self._write_soon()

    # ── carrying out outputs ─────────────────────────────────────────────────────────────

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
            if self._holding and self._mates and self._passed_all() > self._passed_before:
                self._facts_durable()
        except Exception as failure:  # the journal takes no facts: nothing may leave
            self._fail(failure)

    def _carry(self, output: Output, now: float) -> None:
        """Carry out an output in the order that `Output` states."""
        own = self._journal.append(output.persist) if output.persist else 0
        if own and self.lodgers is not None:
            self.lodgers.wrote(own, output)
        if self.history is not None:
            self.history.wrote(own or self._journal.appended, output)
            self.history.durable(self._told())
        if output.confirm or output.forgotten:
            self._confirms.add(own, output)
        contacts = self.contacts
        for frames in (output.send, output.deliver):
            for number, frame in frames:
                contact = contacts.get(number)
                if contact is not None:
                    self._put(contact, frame, own)
        for number, frame in output.feed:
            contact = contacts.get(number)
            if contact is not None and contact.outbox.put(frame, 0, 0):
                self._due[number] = contact
        if output.log:
            assert self._pubend is not None
            self._pubend.append(output.log)
        for want in output.reads:
            asyncio.get_running_loop().call_soon(self._read_log, want)
        for wish in output.staged:
            assert self._stagings is not None
            self._stagings.carry(wish)
        if output.timers:
            self._set_timers(output.timers)
        for close in output.close:
            contact = contacts.get(close.connection)
            if contact is not None and close.at_once:
                self._end_at_once(contact, close)
            elif contact is not None:
                self._end(contact, close.error, close.text, now)
        if output.dial is not None:
            self._aims = output.dial
            if self._listening is not None:
                self._dialling.aim(output.dial)

    def _end_at_once(self, contact: Contact, close: Close) -> None:
        """Its core has forgotten the connection already."""
        self._holding.pop(contact.number, None)
        if not contact.outbox.ended:
            log.info("%s is closed: %s: %s", contact, close.error, close.text)
            contact.outbox.last_word(Farewell(close.error, close.text[:LONGEST_TEXT]))

    def _put(self, contact: Contact, frame: Frame, own: int) -> None:
        """Queue a frame behind the facts of its own step. A frame that depends on durable state (an
        acknowledgement, a hello) waits for all facts so far."""
        journal, position = self._journal, own
        if not own:
            soft = TRAITS[type(frame)].soft
            if not (soft(frame) if callable(soft) else soft):
                position = journal.appended
        passed = self._passed(contact) if self._mates else journal.durable
        outbox = contact.outbox
        if outbox.put(frame, position, passed):
            self._due[contact.number] = contact
        elif outbox.held:
            self._holding[contact.number] = contact

    def _passed(self, contact: Contact) -> int:
        """The position of the last fact that a frame to this contact may depend on: facts on disk
        that the mates have as well. To a mate itself, facts on disk are enough."""
        if not self._mates or contact.name in self._mates:
            return self._journal.durable
        return self._passed_all()

    def _told(self) -> int:
        """The position of the last fact that anybody may have been told of."""
        return self._passed_all() if self._mates else self._journal.durable

    def _passed_all(self) -> int:
        journal = self._journal
        return min(journal.durable, max(0, journal.appended - self.core.withheld()))

    def _read_log(self, want: ReadWanted) -> None:
        assert self._pubend is not None
        try:
            spans = self._pubend.read(want)
        except Exception as failure:  # a promised event cannot be read
            self._fail(failure)
            return
        self._turn(LogRead(want, spans))

    def _forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        if self._pubend is not None:
            try:
                self._pubend.forget(sessions)
            except Exception as failure:  # the log takes no more records
                self._fail(failure)

    def _facts_durable(self) -> None:
        if self.lodgers is not None:
            self.lodgers.durable(self._journal.durable)
        if self.history is not None:
            self.history.durable(self._told())
        waiting, self._holding = self._holding, {}
        self._passed_before = self._passed_all() if self._mates else 0
        for contact in waiting.values():
            contact.outbox.release(self._passed(contact))
            self._due[contact.number] = contact
            if contact.outbox.held:
                self._holding[contact.number] = contact
        self._write_now()

    def _write_soon(self) -> None:
        if self._due and not self._is_writing_soon:
            self._is_writing_soon = True
            self._soon(self._write_now)

    def _write_now(self) -> None:
        """Write once to each contact that is due, in the order in which they became due."""
        self._is_writing_soon = False
        while self._due:
            due, self._due = self._due, {}
            for contact in due.values():
                if self.failure is not None:
                    continue
                try:
                    contact.outbox.flush()
                except FrameError as error:  # a frame that it must get next fits no frame
                    self._refuse(contact, error, self._now())
                except Exception as failure:  # a frame of ours cannot be encoded
                    self._fail(failure)

    # ── timers ───────────────────────────────────────────────────────────────────────────

    def _set_timers(self, wishes: list[SetTimer | CancelTimer]) -> None:
        if len(wishes) > 1:  # a transaction sets its timer repeatedly: the last one counts
            wishes = list({wish.key: wish for wish in wishes}.values())
        for wish in wishes:
            handle = self._timers.pop(wish.key, None)
            if handle is not None:
                handle.cancel()
            if type(wish) is SetTimer:
                self._set_timer(wish, 0.0)

    def _set_timer(self, wish: SetTimer, least_s: float) -> None:
        delay_s = max(wish.at - time.monotonic() - self._ahead_s, least_s)
        loop = asyncio.get_running_loop()
        self._timers[wish.key] = loop.call_later(delay_s, self._expired, wish)

    def _expired(self, wish: SetTimer) -> None:
        if wish.at > time.monotonic() + self._ahead_s:  # never before its time on our clock
            self._set_timer(wish, SHORTEST_S)
        else:
            del self._timers[wish.key]
            self._turn(TimerFired(wish.key))

    def _cancel_timers(self) -> None:
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    # ── heartbeats ───────────────────────────────────────────────────────────────────────

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(self.core.config.heartbeat_s / TICKS_PER_BEAT)
            self._tick(self._now())

    def _tick(self, now: float) -> None:
        self.traffic.sample(now)
        heartbeat_s = self.core.config.heartbeat_s
        silence_s = max(SHORTEST_SILENCE_S, SILENT_BEATS * heartbeat_s)
        ticks = ceil(silence_s / (heartbeat_s / TICKS_PER_BEAT))
        for contact in list(self.contacts.values()):
            problem = contact.problem(now, self.wiring.hello_s, silence_s, ticks)
            if problem is not None:
                self.expel(contact, problem)
            elif contact.idle(now, heartbeat_s):
                self._put(contact, Beat(), 0)
        self._write_now()
        if self._pubend is not None:
            self._pubend.acknowledged(self._letting_go.upto(self.core.done_with()))

    # ── status ───────────────────────────────────────────────────────────────────────────

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]:
        """The core's state, together with the driver's own."""
        now = self._now()
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
            "pubend": {} if self._pubend is None else self._pubend.describe(),
            "traffic": self.traffic.totals() | self.traffic.rates(now),
            "sent": self.traffic.by_kind(),
            "dropped_events": self._dropped_before
            + sum(contact.outbox.dropped for contact in self.contacts.values()),
            "connections": listed,
            "connections_total": len(self.contacts),
            **{name: account() for name, account in self.accounts.items()},
        }
