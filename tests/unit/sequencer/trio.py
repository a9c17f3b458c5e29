"""Two replicas of a site and their witness, as cores: frames pass at once, and disks are fast."""

from __future__ import annotations

from collections import deque
from typing import Any

from motet.protocol.contract import Closed, Dialled, Output, Received, SetTimer, TimerFired
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.sequencing.messages import NumberRequest, Numbers, OrderHello, TopicQuery
from motet.protocol.sequencing.standby import PAIR, WITNESS
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.sequencer.pair import TICK
from motet.sequencer.witness import WitnessConfig, WitnessCore

CLIENT = "client"


class Trio:
    """`a` begins as primary, `b` as standby, `w` is the witness."""

    def __init__(self, *, witnessed: bool = True, patience_s: float = 1.0) -> None:
        self.now = 1.0
        self.cores: dict[str, Any] = {"w": WitnessCore(WitnessConfig(incarnation=77))}
        self.ends: dict[tuple[str, int], tuple[str, int]] = {}
        """By process and connection: the same of its peer."""
        self.said: list[Frame] = []
        """To clients."""
        self.closed: list[Any] = []
        """How replicas ended connections."""
        self.timers: dict[tuple[str, Any], float] = {}
        self.outputs: dict[str, Output] = {}
        """The last one of each process."""
        self.held: set[tuple[str, str]] = set()
        """Frames from one process to another that wait."""
        self._waiting: deque[tuple[str, str, int, Frame]] = deque()
        self._queue: deque[tuple[str, int, Frame]] = deque()
        self._answers: list[tuple[str, int, Frame]] = []
        """To clients, until they may leave."""
        self._connections = 0
        for name, other in (("a", "b"), ("b", "a")):
            config = SiteConfig(
                "S1",
                incarnation=1 + (name == "b"),
                address=name,
                other=other,
                second=name == "b",
                witness="w" if witnessed else "",
                patience_s=patience_s,
            )
            # Without a witness, the first one leads from the start.
            self.cores[name] = SiteCore(config)
            self.carry(name, self.cores[name].recover(self.now))

    def seat(self, name: str) -> Any:
        return self.cores[name].durable.seat

    # ── connections ──────────────────────────────────────────────────────────────────────

    def number(self) -> int:
        self._connections += 1
        return self._connections

    def connect(self, one: str, other: str) -> int:
        mine, theirs = self.number(), self.number()
        self.ends[one, mine], self.ends[other, theirs] = (other, theirs), (one, mine)
        self.step(one, Dialled(mine, WITNESS if other == "w" else PAIR))
        self.run()
        return mine

    def meet(self) -> None:
        """All are connected, and the standby is in step."""
        for name in ("a", "b"):
            if self.cores[name].config.witness:
                self.connect(name, "w")
        self.connect("b", "a")
        self.beat()

    def part(self, one: str, other: str) -> None:
        """The connection between these breaks."""
        for (name, mine), (peer, theirs) in list(self.ends.items()):
            if (name, peer) == (one, other):
                del self.ends[name, mine], self.ends[peer, theirs]
                self.step(name, Closed(mine))
                self.step(peer, Closed(theirs))
        self.run()

    def client(self, name: str, at: str = "a") -> int:
        """Introduced; returns its connection at the replica."""
        number = self.number()
        self.ends[at, number] = (CLIENT, 0)
        self.tell(at, number, OrderHello(PROTOCOL_VERSION, name))
        return number

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def tell(self, name: str, connection: int, *frames: Frame) -> Output:
        for frame in frames:
            self.step(name, Received(connection, frame))
            self.run()
        return self.outputs[name]

    def step(self, name: str, given: Any) -> None:
        self.carry(name, self.cores[name].step(given, self.now))
        self.cores[name].validate()

    def carry(self, name: str, out: Output) -> None:
        self.outputs[name] = out
        for connection, frame in (*out.send, *out.deliver, *out.feed):
            other, theirs = self.ends.get((name, connection), ("", 0))
            if other == CLIENT:
                self._answers.append((name, connection, frame))
            elif (name, other) in self.held:
                self._waiting.append((name, other, theirs, frame))
            elif other:
                self._queue.append((other, theirs, frame))
        for timer in out.timers:
            if isinstance(timer, SetTimer):
                self.timers[name, timer.key] = timer.at
        for close in out.close:
            self.closed.append(close)
            other, theirs = self.ends.pop((name, close.connection), ("", 0))
            if other and other != CLIENT:
                self.ends.pop((other, theirs))
                self.step(other, Closed(theirs))

    def run(self) -> None:
        while self._queue:
            name, connection, frame = self._queue.popleft()
            if (name, connection) in self.ends:
                self.step(name, Received(connection, frame))
        answers, self._answers = self._answers, []
        for name, connection, frame in answers:
            if self.cores[name].withheld():
                self._answers.append((name, connection, frame))
            elif (name, connection) in self.ends:
                self.said.append(frame)

    def release(self) -> None:
        """What waited arrives."""
        self.held.clear()
        while self._waiting:
            _, other, theirs, frame = self._waiting.popleft()
            self._queue.append((other, theirs, frame))
        self.run()

    def beat(self, times: int = 1, *, after_s: float = 0.3, only: str = "ab") -> None:
        """Time passes at these replicas."""
        for _ in range(times):
            self.now += after_s
            for name in only:
                self.step(name, TimerFired(TICK))
            self.run()

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def request(self, connection: int, first: int, at: str = "a") -> list[Numbers]:
        """Ask for a number of topic t; returns the answers that have left."""
        before = len(self.said)
        self.tell(at, connection, TopicQuery(("t",)), NumberRequest(first, (0,)))
        return [frame for frame in self.said[before:] if isinstance(frame, Numbers)]
