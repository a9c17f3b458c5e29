"""The container of one broker: runs the hosted clients whose sessions the broker has.

The broker says which of them run (`RunHosted`, `HaltHosted`), and the container answers whenever a
copy has stopped, for whatever reason. So the broker knows when it can let a client go.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from motet.broker.overlay.topology import HostedPlace, Topology
from motet.client.line.line import Line, dial
from motet.errors import MisuseError, MotetError
from motet.hosted.application import Hosted
from motet.hosted.classes import load
from motet.hosted.execution import Execution
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.hosted.messages import (
    ContainerHello,
    HaltHosted,
    HostedHalted,
    Registered,
    RunHosted,
)
from motet.protocol.session.messages import Farewell
from motet.runtime.codec import decode, encode
from motet.runtime.redial import Backoff

if TYPE_CHECKING:
    from motet.broker.driver.driver import BrokerDriver
    from motet.broker.driver.history import SessionHistory

log = logging.getLogger("motet.hosted")

LONGEST_PAUSE_S = 30.0
LONG_RUN_S = 30.0
"""After a run of this length, the next failure counts as the first."""
LONGEST_ERROR = 500
LONGEST_END_S = 3.0
"""How long copies may take to end when the broker stops."""


@dataclass
class Slot:
    """One client, running or not."""

    place: HostedPlace
    kind: type[Hosted] | None
    error: str = ""
    """Why the last run has failed, or why there can be none."""
    failures: int = 0
    waiting: bool = False
    """For the end of its pause."""
    execution: Execution | None = None
    task: asyncio.Task[None] | None = None
    halt: asyncio.Task[None] | None = None
    pause: Backoff = field(default_factory=lambda: Backoff(last_s=LONGEST_PAUSE_S))

    def describe(self) -> dict[str, Any]:
        state = "waiting" if self.waiting else "absent"
        if self.kind is None:
            state = "not registered"
        elif self.execution is not None:
            state = self.execution.phase
        return {
            "class": self.place.path,
            "home": self.place.home,
            "state": state,
            "failures": self.failures,
            "error": self.error,
        }


class Container:
    def __init__(
        self,
        broker: str,
        places: Sequence[HostedPlace],
        listen: Callable[[], Awaitable[str]],
        heartbeat_s: float,
        history: SessionHistory | None = None,
    ) -> None:
        """`listen` returns the address of the broker for its own process. Runs are recorded in the
        history, if there is one."""
        self._history = history
        self._broker = broker
        self._heartbeat_s = heartbeat_s
        self._listen = listen
        self._address = ""
        self._line: Line | None = None
        self._gone = asyncio.Event()
        self._slots = {place.name: _slot(place) for place in places if place.may_run_at(broker)}

    def describe(self) -> dict[str, dict[str, Any]]:
        return {name: slot.describe() for name, slot in sorted(self._slots.items())}

    async def run(self) -> None:
        """Serve the broker until cancelled."""
        self._address = await self._listen()
        backoff = Backoff(last_s=LONGEST_PAUSE_S)
        try:
            while True:
                self._gone.clear()
                try:
                    await dial(self._address, self)
                    backoff.reset()
                    await self._gone.wait()
                except MotetError as problem:
                    log.error("the container of %s is not connected: %s", self._broker, problem)
                await self._drop_all()
                await asyncio.sleep(backoff.wait_s())
        finally:
            await self._drop_all()

    # ── the connection to the broker ─────────────────────────────────────────────────────

    def connected(self, line: Line) -> None:
        self._line = line
        line.keep_pace(self._heartbeat_s)
        registered = {name: s.place for name, s in self._slots.items() if s.kind is not None}
        homes = tuple(name for name, place in registered.items() if place.home == self._broker)
        self._send(ContainerHello(PROTOCOL_VERSION), Registered(tuple(registered), homes))

    def heard(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            frame = decode(body)
            if isinstance(frame, RunHosted):
                self._start(frame.client)
            elif isinstance(frame, HaltHosted):
                slot = self._slots[frame.client]
                if slot.execution is not None:
                    slot.halt = asyncio.create_task(slot.execution.halt())
            elif isinstance(frame, Farewell):
                log.info("the broker closes the connection of its container: %s", frame.text)

    def relieved(self) -> None:
        """Few frames are sent; none waits."""

    def disconnected(self, reason: str) -> None:
        del reason
        self._line = None
        self._gone.set()

    def _send(self, *frames: Frame) -> None:
        if self._line is not None:
            self._line.send([encode(frame) for frame in frames])

    # ── copies ───────────────────────────────────────────────────────────────────────────

    def _start(self, client: str) -> None:
        slot = self._slots[client]
        if slot.task is None and slot.kind is not None:
            slot.task = asyncio.create_task(self._run(slot, slot.kind))

    async def _run(self, slot: Slot, kind: type[Hosted]) -> None:
        place = slot.place
        try:
            if slot.error:
                slot.waiting = True
                await asyncio.sleep(slot.pause.wait_s())
                slot.waiting = False
            began = time.monotonic()
            what = (place.name, self._broker, self._address, kind, place.options)
            execution = Execution(*what, self._note_of(place.name))
            slot.execution = execution
            try:
                await execution.run()
                slot.error = ""
            except Exception as failure:
                if execution.is_ended_by_broker(failure):
                    log.info("%s does not run here now: %s", place.name, failure)
                    slot.error = ""
                else:
                    self._failed(slot, failure, time.monotonic() - began)
        finally:
            slot.waiting = False
            slot.execution = slot.task = None
            self._send(HostedHalted(place.name))

    def _note_of(self, client: str) -> Callable[[str], None]:
        """Records one run."""
        history, process = self._history, secrets.token_hex(8)
        if history is None:
            return lambda _: None
        return lambda what: history.ran(client, process, what)

    def _failed(self, slot: Slot, failure: Exception, lasted_s: float) -> None:
        if lasted_s >= LONG_RUN_S:
            slot.pause.reset()
        slot.failures += 1
        slot.error = f"{type(failure).__name__}: {failure}"[:LONGEST_ERROR]
        trace = None if isinstance(failure, MotetError) else failure
        log.error("%s failed and starts again: %s", slot.place.name, slot.error, exc_info=trace)

    async def _drop_all(self) -> None:
        tasks = {slot.task for slot in self._slots.values() if slot.task is not None}
        for slot in self._slots.values():
            if slot.execution is not None:
                slot.execution.drop()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=LONGEST_END_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _slot(place: HostedPlace) -> Slot:
    try:
        return Slot(place, load(place.path))
    except MisuseError as problem:
        log.error("%s cannot run here: %s", place.name, problem)
        return Slot(place, None, str(problem)[:LONGEST_ERROR])


def attach(driver: BrokerDriver, topology: Topology) -> None:
    """Give a broker its container, if the topology has clients that may run there. To be called
    before the broker starts."""
    config = driver.core.config
    is_mate = topology.head(config.name) != config.name
    if is_mate or not any(each.may_run_at(config.name) for each in topology.hosted):
        return
    heartbeat_s, history = config.heartbeat_s, driver.lodgers
    container = Container(config.name, topology.hosted, driver.listen_inside, heartbeat_s, history)
    driver.companions.append(container.run)
    driver.accounts["container"] = container.describe
