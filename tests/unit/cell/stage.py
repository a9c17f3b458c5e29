"""A few real cores, with every frame between them under the test's control."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import Raw

from motet.broker.core.broker import BrokerCore
from motet.broker.core.cell.mate import MateCore
from motet.model import Filter, encode_event
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import (
    Closed,
    Dialled,
    Input,
    Logged,
    LogRun,
    LogStart,
    Output,
    Received,
    Remembered,
    SetTimer,
    TimerFired,
)
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ClientHello,
    Done,
    Publish,
    SubscribeRequest,
)


class Stage:
    """P – {B, Bm} – E: a publisher's broker, a cell of two, and a subscriber's broker.

    The disk takes no time. What rests on facts that a mate has not got waits, as in the driver.
    """

    def __init__(self) -> None:
        self.now = 1.0
        cells = {"B": ("Bm",)}
        near = {"P": ("B",), "B": ("P", "E"), "E": ("B",)}
        self.cores: dict[str, Any] = {
            "P": BrokerCore(BrokerConfig("P", near["P"], cells=cells)),
            "B": BrokerCore(BrokerConfig("B", near["B"], mates=("Bm",))),
            "E": BrokerCore(BrokerConfig("E", near["E"], cells=cells)),
            "Bm": MateCore(BrokerConfig("Bm", near["B"], 100, head="B", head_at="there")),
        }
        self.wires: dict[tuple[str, int], tuple[str, int]] = {}
        self.held: dict[str, deque[tuple[int, int, Frame]]] = {}
        self.facts = dict.fromkeys(self.cores, 0)
        self.timers: dict[tuple[str, Any], float] = {}
        self.queue: deque[tuple[str, Input]] = deque()
        self.stopped: set[str] = set()
        """Who stands still: what comes for it waits."""
        self.delivered: dict[str, list[Any]] = {}
        self.answers: dict[str, list[Frame]] = {}
        self.closed: list[Any] = []
        self._logged = dict.fromkeys(self.cores, 0)
        self._connections = 0
        self._sequences: dict[str, int] = {}
        self._clients: dict[int, str] = {}
        for name, core in self.cores.items():
            remembered = None if name == "Bm" else Remembered()
            self._carry(name, core.recover(self.now, remembered))

    # ── links ────────────────────────────────────────────────────────────────────────────

    def link(self, caller: str, called: str) -> None:
        self._connections += 1
        number = self._connections
        self.wires[caller, number] = (called, number)
        self.wires[called, number] = (caller, number)
        self.give(caller, Dialled(number, called))

    def link_all(self) -> None:
        self.link("Bm", "B")
        for caller, called in (("P", "B"), ("P", "Bm"), ("E", "B"), ("E", "Bm")):
            self.link(caller, called)

    def cut(self, one: str, two: str) -> None:
        for (name, number), (other, _) in list(self.wires.items()):
            if name == one and other == two:
                del self.wires[one, number], self.wires[two, number]
                self.give(one, Closed(number))
                self.give(two, Closed(number))

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def connect(self, client: str, broker: str) -> int:
        self._connections += 1
        self._clients[self._connections] = client
        self._sequences[client] = 0
        self.give(broker, Received(self._connections, ClientHello(PROTOCOL_VERSION, client)))
        return self._connections

    def ask(self, connection: int, broker: str, request: type, text: str) -> bool:
        """Whether it was effective in the end."""
        client = self._clients[connection]
        self._sequences[client] += 1
        number = self._sequences[client]
        self.give(broker, Received(connection, request(number, Filter.parse(text))))
        return any(
            isinstance(each, Done) and each.sequence == number for each in self.answers[client]
        )

    def advertise(self, connection: int, broker: str, text: str) -> bool:
        return self.ask(connection, broker, AdvertiseRequest, text)

    def subscribe(self, connection: int, broker: str, text: str) -> bool:
        return self.ask(connection, broker, SubscribeRequest, text)

    def publish(self, connection: int, broker: str, first: int, **attributes: Any) -> None:
        body = Raw(encode_event(attributes, b""))
        self.give(broker, Received(connection, Publish(first, [body], True)))

    # ── time ─────────────────────────────────────────────────────────────────────────────

    def give(self, name: str, given: Input) -> None:
        self.queue.append((name, given))
        self.settle()

    def settle(self) -> None:
        waiting: deque[tuple[str, Input]] = deque()
        while self.queue:
            name, given = self.queue.popleft()
            if name in self.stopped:
                waiting.append((name, given))
            else:
                self._carry(name, self.cores[name].step(given, self.now))
        self.queue = waiting

    def go_on(self, name: str) -> None:
        self.stopped.discard(name)
        self.settle()

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [(at, *key) for key, at in self.timers.items() if at <= until]:
            at, name, key = min(due, key=lambda each: (each[0], each[1], str(each[2])))
            self.now = max(self.now, at)
            del self.timers[name, key]
            self.give(name, TimerFired(key))
        self.now = until

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    def _carry(self, name: str, out: Output) -> None:
        self.facts[name] += len(out.persist)
        for number, frame in (*out.send, *out.deliver):
            self.held.setdefault(name, deque()).append((self.facts[name], number, frame))
        self._release(name)
        for timer in out.timers:
            if isinstance(timer, SetTimer):
                self.timers[name, timer.key] = timer.at
            else:
                self.timers.pop((name, timer.key), None)
        if out.log:
            self._logged[name] += sum(isinstance(i, LogRun | LogStart) for i in out.log)
            self.queue.append((name, Logged(self._logged[name])))
        for close in out.close:
            self.closed.append(close)
            other = self.wires.pop((name, close.connection), None)
            if other is not None:
                self.wires.pop(other, None)
                self.queue.append((other[0], Closed(other[1])))

    def _release(self, name: str) -> None:
        kept: deque[tuple[int, int, Frame]] = deque()
        passed = self.facts[name] - self.cores[name].withheld()
        for position, number, frame in self.held.pop(name, ()):
            other, connection = self.wires.get((name, number), ("", 0))
            if position > passed and other != "Bm":
                kept.append((position, number, frame))
            elif other:
                self.queue.append((other, Received(connection, frame)))
            elif number in self._clients:
                self._hear(self._clients[number], frame)
        if kept:
            self.held[name] = kept

    def _hear(self, client: str, frame: Frame) -> None:
        self.answers.setdefault(client, []).append(frame)
        if isinstance(frame, Delivered):
            self.delivered.setdefault(client, []).extend(each.sequence for each in frame.batch)
