"""Small stand-ins: a core that does what it is told, a connection that writes down what is sent.

The driver's tests look at single reads and writes within one turn of the event loop, and say when a
connection is congested; the real connections of `motet.runtime.inproc` decide that themselves. The
simulator's brokers do not run the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from typing import Any

from motet.broker.core.records import encode as encode_fact
from motet.broker.driver.driver import BrokerDriver, Soon
from motet.broker.driver.pubend import Pubend
from motet.broker.folder.journal import LoggedJournal
from motet.broker.overlay.topology import Wiring
from motet.errors import Disconnected
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Closed, Input, Output, Received, Remembered
from motet.protocol.frames import Frame
from motet.protocol.room import Objection
from motet.protocol.session.messages import Farewell
from motet.runtime.codec import decode, encode
from motet.runtime.transport import Accept, Connection, Handler, Listening
from motet.testing.clock import Agenda
from motet.testing.log import SimulatedLog


class FakeConnection:
    peer = "fake://peer"

    def __init__(self) -> None:
        self.handler: Handler
        self.writes: list[list[Frame]] = []
        self.backlog_bytes = 0
        self.received_bytes = 0
        self.congested = False
        self.closings: list[str] = []

    def send(self, bodies: Sequence[bytes]) -> None:
        if not self.closings:
            self.writes.append([decode(body) for body in bodies])

    def close(self, reason: str = "") -> None:
        if not self.closings:
            self.closings.append(reason)
            asyncio.get_running_loop().call_soon(self.handler.closed, reason)

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    @property
    def frames(self) -> list[Frame]:
        return [frame for write in self.writes for frame in write]

    @property
    def farewell(self) -> Farewell:
        last = self.frames[-1]
        assert isinstance(last, Farewell)
        return last

    def hear(self, *frames: Frame) -> None:
        self.hear_bytes(*(encode(frame) for frame in frames))

    def hear_bytes(self, *bodies: bytes) -> None:
        self.received_bytes += sum(map(len, bodies))
        self.handler.frames(bodies)


class FakeTransport:
    """Accepts who calls `dial_in`; answers our calls with what stands in `answers`. It is also what
    `listen` returns."""

    scheme = "fake"

    def __init__(self) -> None:
        self.accept: Accept
        self.dialled: list[FakeConnection] = []
        self.answers: Callable[[str], bool] = lambda _: True
        self.tries = 0

    async def listen(self, address: str, accept: Accept) -> Listening:
        self.accept = accept
        self.address = address
        return self

    async def close(self) -> None:
        del self.accept

    async def connect(self, address: str, accept: Accept) -> Connection:
        self.tries += 1
        await asyncio.sleep(0)
        if not self.answers(address):
            raise Disconnected("nobody there")
        connection = FakeConnection()
        connection.handler = accept(connection)
        self.dialled.append(connection)
        return connection

    def dial_in(self) -> FakeConnection:
        connection = FakeConnection()
        connection.handler = self.accept(connection)
        return connection


Answer = Callable[[Input], Output]


class FakeCore:
    """Notes its inputs, and answers with what the test says."""

    def __init__(self, answer: Answer | None = None, heartbeat_s: float = 2.0) -> None:
        self.config = BrokerConfig("fake", heartbeat_s=heartbeat_s)
        self.inputs: list[Input] = []
        self.answer: Answer = answer or (lambda _: Output())
        self.objection: Objection | None = None
        self.done_upto = 0
        self.address = ""

    def listens_at(self, address: str) -> None:
        self.address = address

    def recover(self, now: float, remembered: Remembered | None = None) -> Output:
        del now, remembered
        return Output()

    def outlives(self, error: str) -> bool:
        return error != "StaleState"

    def done_with(self) -> int:
        return self.done_upto

    def step(self, given: Input, now: float, /) -> Output:
        del now
        self.inputs.append(given)
        return self.answer(given)

    def objection_to(self, neighbours: tuple[str, ...]) -> Objection | None:
        del neighbours
        return self.objection

    def status(self, clients: tuple[str, ...] = ()) -> dict[str, Any]:
        del clients
        return {"broker": "fake"}

    @property
    def received(self) -> list[Frame]:
        return [given.frame for given in self.inputs if isinstance(given, Received)]

    @property
    def closed(self) -> list[int]:
        return [given.connection for given in self.inputs if isinstance(given, Closed)]


class SlowJournal(LoggedJournal):
    """Durable when the test says so: each fact one second after the fact before it."""

    def __init__(self) -> None:
        self._agenda = Agenda()
        self.disk = SimulatedLog(self._agenda, count(1).__next__)
        super().__init__(self.disk, encode_fact, "slow")

    def sync(self, position: float = inf) -> None:
        self._agenda.run(position)


class Bench:
    """A driver on fakes: `async with Bench(answer) as bench`."""

    def __init__(
        self,
        answer: Answer | None = None,
        journal: SlowJournal | None = None,
        heartbeat_s: float = 2.0,
        soon: Soon = lambda work: work(),
        pubend: Pubend | None = None,
        **wiring: Any,
    ) -> None:
        """Writes at once, unless `soon` is another."""
        self.core = FakeCore(answer, heartbeat_s)
        self.transport = FakeTransport()
        self.journal = journal
        self.driver = BrokerDriver(
            self.core,
            Wiring("fake://here", **wiring),
            journal=journal,
            pubend=pubend,
            transports=lambda _: self.transport,
            soon=soon,
        )

    async def __aenter__(self) -> Bench:
        await self.driver.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.driver.stop()

    def dial_in(self) -> FakeConnection:
        return self.transport.dial_in()
