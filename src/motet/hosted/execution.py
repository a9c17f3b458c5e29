"""One run of a hosted client: its code is started, given events, and stopped; what it handles is
acknowledged together with its state and what it publishes.

A checkpoint is made as soon as something was handled and the last one is durable, so its size
follows the speed of the disk.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from motet.client.client import Client
from motet.client.orders import move_order
from motet.client.session.hosted import HostedMachine
from motet.errors import Disconnected, EventsLost, MisuseError, MotetError
from motet.hosted.application import Context, Hosted
from motet.hosted.session import HostedDriver
from motet.model.limits import MAX_KEEP_S

log = logging.getLogger("motet.hosted")

WELCOME_S = 10.0
HALT_S = 2.0
"""How long a copy that is to stop may go on handling its event, and then its `stop`."""
LEAVE_S = 2.0


class Execution:
    """Await `run`: it returns when the copy has stopped, and raises what has ended it."""

    def __init__(
        self,
        name: str,
        broker: str,
        address: str,
        kind: type[Hosted],
        options: Mapping[str, Any],
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`note` is told when the code has "began" to run, and when it has "ended"."""
        self.name = name
        self._note = note
        self._broker = broker
        self._address = address
        self._kind = kind
        self._options = options
        self._driver: HostedDriver
        self._machine: HostedMachine
        self._work: asyncio.Task[None] | None = None
        """Runs the code of the application, apart from its own tasks."""
        self._beside: dict[asyncio.Task[None], None] = {}
        self._failure: BaseException | None = None
        """Of a task beside, or of the constructor."""
        self._halting = False
        self._state: bytes | None = None
        """As it was in the last checkpoint."""
        self._wanted: list[asyncio.Future[None]] = []
        self._promised: dict[int, list[asyncio.Future[None]]] = {}
        """By checkpoint: who waits for it."""
        self._move: tuple[str, float] | None = None
        self.phase = "starting"
        """Then "running", from the end of `Hosted.start` on, and "stopping"."""

    # ── for the container ────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        machine = HostedMachine(self.name, instance=secrets.token_hex(8), keep_s=MAX_KEEP_S)
        driver = HostedDriver(self._address, machine)
        self._driver, self._machine = driver, machine
        await driver.begin(WELCOME_S)
        try:
            if not self._halting:
                await self._run_code()
        finally:
            self._give_up()
            await driver.leave(LEAVE_S)
        if self._failure is not None:
            raise self._failure

    async def _run_code(self) -> None:
        self._state = self._machine.known.state
        try:
            hosted = self._kind()
        except Exception as failure:
            self._failure = failure
            return
        context = Context(self, Client(self._driver), self._broker, self._options)
        self._note("began")
        self._work = asyncio.create_task(self._live(hosted, context))
        await asyncio.wait({self._work})
        self.phase = "stopping"
        await self._stop(hosted)
        self._note("ended")
        if not self._work.cancelled():
            self._work.result()

    def is_ended_by_broker(self, failure: Exception) -> bool:
        """The code of the application is not to blame."""
        own = self._work is not None or failure is self._failure
        return not own or failure is self._driver.error

    async def halt(self) -> None:
        """End the copy, behind the event that it handles if that does not take too long."""
        self._halting = True
        work = self._work
        if work is None:
            return
        self._driver.bell.set()
        await asyncio.wait({work}, timeout=HALT_S)
        work.cancel()

    def drop(self) -> None:
        """The broker stops: end the copy at once, without a goodbye."""
        self._halting = True
        if self._work is not None:
            self._work.cancel()
        self._driver.drop()

    async def _stop(self, hosted: Hosted) -> None:
        """Let the application end, with its tasks."""
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)
        self._beside.clear()
        try:
            async with asyncio.timeout(HALT_S):
                await hosted.stop()
        except Exception:
            log.exception("the end of %s failed", self.name)

    def _give_up(self) -> None:
        error = Disconnected(f"this copy of {self.name!r} has ended")
        for waiter in [*self._wanted, *(each for some in self._promised.values() for each in some)]:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()

    # ── the life of a copy ───────────────────────────────────────────────────────────────

    async def _live(self, hosted: Hosted, context: Context) -> None:
        driver, machine = self._driver, self._machine
        await hosted.start(context, machine.known.state)
        driver.progress.begin()
        self.phase = "running"
        while True:
            driver.bell.clear()
            self._check()
            self._checkpoint(hosted)
            if self._halting or self._move is not None:
                if driver.progress.unkept or machine.is_checkpointing:
                    await driver.bell.wait()
                elif self._halting:
                    return
                else:
                    self._ask_to_move(hosted)
            elif driver.inbox and machine.has_outlet:
                await self._handle(hosted, context)
                await asyncio.sleep(0)  # the broker has the same loop
            else:
                await driver.bell.wait()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._driver.error is not None:
            raise self._driver.error
        for number in [n for n in self._promised if n <= self._driver.kept]:
            for waiter in self._promised.pop(number):
                if not waiter.done():
                    waiter.set_result(None)

    async def _handle(self, hosted: Hosted, context: Context) -> None:
        driver = self._driver
        arrival = driver.inbox.first()
        driver.progress.unkept = True
        if isinstance(arrival.what, EventsLost):
            await hosted.on_loss(arrival.what)
        else:
            context.matched = arrival.names
            await hosted.on_event(arrival.what)
        driver.inbox.handled()

    def _checkpoint(self, hosted: Hosted) -> None:
        """Make durable what was handled, unless the last checkpoint still is under way."""
        driver, machine = self._driver, self._machine
        if machine.is_checkpointing or not (driver.progress.unkept or self._wanted):
            return
        state = hosted.state()
        if not isinstance(state, bytes):
            kind = type(state).__name__
            raise MisuseError(f"the state of {self.name!r} is of type {kind}; return bytes")
        number = machine.checkpoint(None if state == self._state else state, driver.inbox.cursors())
        self._state = state
        driver.progress.unkept = False
        if self._wanted:
            self._promised[number], self._wanted = self._wanted, []
        driver.carry_out()

    # ── for the application ──────────────────────────────────────────────────────────────

    def publish(self, body: bytes) -> None:
        self._driver.check_open()
        self._machine.stage(body)
        self._driver.progress.unkept = True
        self._driver.bell.set()

    async def acknowledge(self) -> None:
        if asyncio.current_task() is self._work:
            raise MisuseError(
                "`acknowledge` cannot be awaited in `start` or `on_event`: the container "
                "acknowledges when they have returned"
            )
        self._driver.check_open()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted.append(waiter)
        self._driver.bell.set()
        await waiter

    async def until_published(self) -> None:
        """Everything that was published is in the log."""
        driver, machine = self._driver, self._machine
        if machine.staged or machine.is_checkpointing:
            await self.acknowledge()
        await driver.ledger.reach(machine.window.made)

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._beside[task] = None
        task.add_done_callback(self._beside_ended)
        return task

    def _beside_ended(self, task: asyncio.Task[None]) -> None:
        self._beside.pop(task, None)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self._driver.bell.set()

    def move(self, to: str, timeout_s: float) -> None:
        self._move = (to, timeout_s)
        self._driver.bell.set()

    def _ask_to_move(self, hosted: Hosted) -> None:
        asked, self._move = self._move, None
        if asked is not None:
            self.create_task(self._order(hosted, *asked))

    async def _order(self, hosted: Hosted, to: str, timeout_s: float) -> None:
        try:
            await move_order(self._address, self.name, to, timeout_s)
        except MotetError as problem:
            log.warning("%s asked to be moved to %s: %s", self.name, to, problem)
            await hosted.on_move_refused(problem)
