"""Scenarios: races between brokers as text, with every message on the page.

A scenario file is a list of commands, each followed by `----` and what must come of it. Frames
between brokers wait in their link until the scenario delivers, loses or doubles them, so that
the reader decides what crosses what. `replay(path)` runs a file and returns it with the outcomes
that really came; a test compares the two.

    overlay A-B B-C            brokers and links; `overlay covering A-B` turns covering on,
                               `overlay keep=3 A-B` keeps three messages for who stays away, and
                               `overlay sure A-B` gives brokers pubends
    ahead A 3                  the clock of A is three seconds ahead
    down A · up A              kill a broker; start it again from its journal
    connect alice A [p1]       a client says hello, as process p1; goodbye alice · vanish alice
    connect bob A total        a client in total order
    connect bob A p1 keep=60   a durable client; leave bob: its process ends, its session does not
    resume alice A A-1.2 [p1]  a client comes back and wants to go on with session A-1.2
    advertise alice x > 1      and: subscribe, unadvertise alice 1, unsubscribe alice 1
    publish alice x=5 y='a'    one event, exactly once if the overlay is sure
    deliver A B [n]            hand over the oldest frame(s) of a link; settle: all of them
    lose A B · double A B      what a bad network does to the oldest frame
    cut A B · heal A B         break a link's connection; dial it again
    crash A · amnesia A        kill and restart, from the journal or with nothing
    backup A · restore A       keep a copy of the journal; kill and restart from that copy
    add B-C · remove B-C       let C join a running overlay as a neighbour of B, or leave it
    time 5                     let time pass; timers fire in order
    tables A · clients A       show the routing tables, or which client lives where

What clients do in transactions is in `tx_verbs`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from motet.broker.config import OUTBOX_BOUND, BrokerConfig
from motet.broker.core import BrokerCore
from motet.broker.durable import Durable
from motet.errors import StaleState
from motet.model import Filter
from motet.protocol.contract import (
    Closed,
    Dialled,
    Fact,
    Input,
    Logged,
    LogRead,
    Output,
    Persisted,
    Received,
    Reconfigured,
    SetTimer,
    TimerFired,
    TimerKey,
)
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link import messages as link
from motet.protocol.session import messages as session
from motet.testing.clock import Agenda
from motet.testing.pubend import SimulatedPubend
from motet.testing.tx_verbs import TX_VERBS, Book, body_of
from motet.testing.words import hop_of, number_from, op_of, tell


class Scenario:
    """The stage: brokers, clients, and the frames under way between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.brokers: dict[str, BrokerCore] = {}
        self.journals: dict[str, list[Fact]] = {}
        self.wires: dict[tuple[str, str], deque[tuple[int, Frame]]] = {}
        self.ends: dict[tuple[str, int], str] = {}
        self.homes: dict[str, str] = {}
        self.counters: dict[str, int] = {}
        self.timers: dict[tuple[str, TimerKey], float] = {}
        self._connections = 0
        self._edges: list[tuple[str, str]] = []
        self._covering = self._sure = False
        self._pubends: dict[str, SimulatedPubend] = {}
        self._ahead_s: dict[str, float] = {}
        self._bound = OUTBOX_BOUND
        self._lives: dict[str, int] = {}
        self._backups: dict[str, list[Fact]] = {}
        self._founded: dict[str, BrokerConfig] = {}
        self.book = Book()

    def run(self, command: str) -> list[str]:
        """Carry out one command; the lines that tell what came of it."""
        self.lines = []
        verb, _, rest = command.partition(" ")
        VERBS[verb](self, rest)
        return self.lines

    # ── the stage ────────────────────────────────────────────────────────────────────────

    def overlay(self, text: str) -> None:
        for word in text.split():
            if word == "covering":
                self._covering = True
            elif word == "sure":
                self._sure = True
            elif word.startswith("keep="):
                self._bound = int(word.removeprefix("keep="))
            else:
                left, right = word.split("-")
                self._edges.append((left, right))
        for name in sorted({name for edge in self._edges for name in edge}):
            self._start(name, [])
        for left, right in self._edges:
            self._dial(left, right)
        self._settle()
        self.lines = [f"{len(self.brokers)} brokers linked"]

    def _start(self, name: str, journal: list[Fact]) -> None:
        neighbours = tuple(
            left if right == name else right for left, right in self._edges if name in (left, right)
        )
        life = self._lives.setdefault(name, 1)
        config = BrokerConfig(
            name,
            neighbours,
            life,
            covering=self._covering,
            outbox_bound=self._bound,
            root=min(n for edge in self._edges for n in edge),
        )
        if not journal:
            self._founded[name] = config
        durable = Durable(self._founded[name])
        durable.replay(journal)
        core = BrokerCore(self._founded[name], durable)
        self.brokers[name] = core
        self.journals[name] = list(journal)
        remembered = None
        if self._sure:
            if not journal:
                self._pubends[name] = SimulatedPubend(Agenda(), lambda: 0.0)
            remembered = self._pubends[name].remembered()
            self._pubends[name].watch(lambda _: None, _unexpected)
        self._carry(name, core.recover(self._clock(name), remembered))

    def up(self, name: str) -> None:
        self._start(name, self.journals[name])
        for left, right in self._edges:
            if name in (left, right) and left in self.brokers and right in self.brokers:
                self._dial(left, right)

    def restart(self, name: str, *, remember: bool) -> None:
        before = self.brokers[name]
        for broker, connection in [end for end in self.ends if end[0] == name]:
            self._hang_up(broker, connection)
        for key in [key for key in self.timers if key[0] == name]:
            del self.timers[key]
        if not remember:  # later than any life before, as the clock would be
            self._lives[name] = before.durable.lives + 1
        self._start(name, self.journals[name] if remember else [])
        if remember:
            same = self.brokers[name].durable.digest() == before.durable.digest()
            self.lines.append(f"{name} replayed {'the same state' if same else 'ANOTHER STATE'}")
        for left, right in self._edges:
            if name in (left, right):
                self._dial(left, right)

    # ── changes ──────────────────────────────────────────────────────────────────────────

    def add(self, text: str) -> None:
        """A new broker on the right; the one on the left learns of it first."""
        left, right = text.split("-")
        near = tuple(self.brokers[left].links)
        self._step(left, Reconfigured((*near, right)))
        self._edges.append((left, right))
        if right not in self.brokers:
            self._start(right, [])
        self._dial(right, left)

    def remove(self, text: str) -> None:
        left, right = text.split("-")
        near = tuple(name for name in self.brokers[left].links if name != right)
        objection = self.brokers[left].objection_to(near)
        if objection:
            self.lines.append(f"{left} refuses: {objection}")
            return
        self._step(left, Reconfigured(near))
        self._edges.remove((left, right))
        self._stop(right)

    def restore(self, name: str) -> None:
        """A restart from an older copy; nobody tells the broker that it is one."""
        self.journals[name] = self._backups[name]
        self.restart(name, remember=True)

    def _stop(self, name: str, why: str = "") -> None:
        if name not in self.brokers:
            return
        if why:
            self.lines.append(f"{name} stops: {why}")
        del self.brokers[name]
        for wire in [wire for wire in self.wires if name in wire]:
            del self.wires[wire]
        for broker, connection in [end for end in self.ends if end[0] == name]:
            other = self.ends.pop((broker, connection))
            if self.ends.pop((other, connection), None) is not None:
                self._step(other, Closed(connection))
        for key in [key for key in self.timers if key[0] == name]:
            del self.timers[key]

    def _dial(self, left: str, right: str) -> None:
        self._connections += 1
        number = self._connections
        self.ends[left, number], self.ends[right, number] = right, left
        self.wires[left, right], self.wires[right, left] = deque(), deque()
        self._step(left, Dialled(number, right))

    def _hang_up(self, broker: str, connection: int) -> None:
        other = self.ends.pop((broker, connection))
        if other in self.brokers:
            self.wires[broker, other].clear()
            self.wires[other, broker].clear()
            if self.ends.pop((other, connection), None) is not None:
                self._step(other, Closed(connection))

    def cut(self, text: str) -> None:
        left, right = text.split()
        for broker, connection in [e for e, other in self.ends.items() if e[0] == left]:
            if self.ends.get((broker, connection)) == right:
                self._step(left, Closed(connection))
                self._hang_up(left, connection)

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def connect(self, text: str) -> None:
        client, broker, *instance = text.split()
        self.counters[client] = self.counters[f"{client} published"] = 0
        self._hello(broker, _greeting(client, None, instance))

    def resume(self, text: str) -> None:
        client, broker, epoch, *instance = text.split()
        self._hello(broker, _greeting(client, epoch, instance))

    def _hello(self, broker: str, hello: session.ClientHello) -> None:
        self._connections += 1
        self.ends[broker, self._connections] = hello.client
        self.homes[hello.client] = broker
        self._from_client(hello.client, hello)

    def vanish(self, client: str) -> None:
        broker = self.homes[client]
        connection = self._connection(client)
        del self.ends[broker, connection]
        self._step(broker, Closed(connection))

    def request(self, kind: type, text: str) -> None:
        client, _, rest = text.partition(" ")
        self.counters[client] += 1
        removal = kind in (session.UnadvertiseRequest, session.UnsubscribeRequest)
        what = number_from(rest) if removal else Filter.parse(rest)
        self._from_client(client, kind(self.counters[client], what))

    def publish(self, text: str) -> None:
        client, rest = text.split(maxsplit=1)
        counter = f"{client} published"
        self.counters[counter] += 1
        told = session.Publish(self.counters[counter], [body_of(rest)], self._sure)
        self._from_client(client, told)

    def _from_client(self, client: str, frame: Frame) -> None:
        self._step(self.homes[client], Received(self._connection(client), frame))

    def _connection(self, client: str) -> int:
        return max(c for (_, c), other in self.ends.items() if other == client)

    # ── the network ──────────────────────────────────────────────────────────────────────

    def deliver(self, text: str) -> None:
        sender, receiver, *count = text.split()
        for _ in range(int(count[0]) if count else 1):
            self._hand_over(sender, receiver)

    def lose(self, text: str) -> None:
        sender, receiver = text.split()
        _, frame = self.wires[sender, receiver].popleft()
        self.lines.append(f"lost {tell(frame)}")

    def double(self, text: str) -> None:
        sender, receiver = text.split()
        wire = self.wires[sender, receiver]
        wire.insert(1, wire[0])

    def _hand_over(self, sender: str, receiver: str) -> None:
        """The oldest frame; acknowledgements before it go along, they would only be noise."""
        wire = self.wires[sender, receiver]
        while wire:
            connection, frame = wire.popleft()
            self._step(receiver, Received(connection, frame))
            if not isinstance(frame, link.ControlAck):
                return

    def settle(self, _: str = "") -> None:
        self._settle()

    def _settle(self) -> None:
        while waiting := [wire for wire, frames in self.wires.items() if frames]:
            self._hand_over(*min(waiting))

    def time(self, text: str) -> None:
        until = self.now + float(text)
        while due := [(at, *key) for key, at in self.timers.items() if at <= until]:
            at, broker, timer = min(due, key=lambda d: (d[0], d[1], str(d[2])))
            self.now = max(self.now, at)
            del self.timers[broker, timer]
            self._step(broker, TimerFired(timer))
        self.now = until

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def _step(self, broker: str, input: Input) -> None:
        core = self.brokers[broker]
        try:
            out = core.step(input, self._clock(broker))
        except StaleState as problem:
            self._stop(broker, str(problem))
            return
        self._carry(broker, out)
        core.validate()

    def _carry(self, broker: str, out: Output) -> None:
        self.journals.setdefault(broker, []).extend(out.persist)
        for connection, frame in (*out.send, *out.deliver):
            other = self.ends.get((broker, connection))
            if other is None:
                continue
            if other in self.brokers:
                self.wires[broker, other].append((connection, frame))
            if not isinstance(frame, link.ControlAck):
                self.lines.append(f"{broker} > {other}: {tell(frame)}")
            self.book.hear(other, frame)
        for timer in out.timers:
            if isinstance(timer, SetTimer):
                self.timers[broker, timer.key] = timer.at - self._ahead_s.get(broker, 0.0)
            else:
                self.timers.pop((broker, timer.key), None)
        for connection, error, text in out.close:
            other = self.ends.pop((broker, connection), None)
            if other is None:
                continue
            self.lines.append(f"{broker} closes {other}: {error or text}")
            if error == StaleState.__name__:
                self._stop(other, text)

        if out.confirm:
            self._step(broker, Persisted(out.confirm))
        if out.forgotten:
            self._pubends[broker].forget(out.forgotten)
        if out.log:
            self._pubends[broker].append(out.log)
            self._step(broker, Logged(self._pubends[broker].durable))
        for want in out.reads:
            self._step(broker, LogRead(want, self._pubends[broker].read(want)))

    def _clock(self, broker: str) -> float:
        return self.now + self._ahead_s.get(broker, 0.0)

    def tables(self, broker: str) -> None:
        state = self.brokers[broker].durable.routing.state
        for title, table in (("SRT", state.advertisements), ("PRT", state.subscriptions)):
            for entry in table:
                sent = " ".join(state.bits.names(entry.sent))
                told = f", told {sent}" if sent else ""
                self.lines.append(
                    f"{title} {op_of(entry.id)} ({entry.filter}) from {hop_of(entry.source)}{told}"
                )
        waits = [
            f"{op_of(w.op)} for {' '.join(state.bits.names(w.missing))}"
            for w in state.waits.values()
        ]
        self.lines.extend(f"waits: {wait}" for wait in waits)
        if not self.lines:
            self.lines.append("empty")

    def clients(self, broker: str) -> None:
        state = self.brokers[broker].durable.routing.state
        for (client, epoch), hop in state.clients.items():
            self.lines.append(f"{client} in {epoch} from {hop_of(hop)}")
        if not self.lines:
            self.lines.append("nobody")


VERBS: dict[str, Callable[[Scenario, str], None]] = {
    "overlay": Scenario.overlay,
    "connect": Scenario.connect,
    "resume": Scenario.resume,
    "goodbye": lambda s, client: s._from_client(client, session.Goodbye()),
    "leave": lambda s, client: s._from_client(client, session.Goodbye(stay=True)),
    "vanish": Scenario.vanish,
    "advertise": lambda s, text: s.request(session.AdvertiseRequest, text),
    "unadvertise": lambda s, text: s.request(session.UnadvertiseRequest, text),
    "subscribe": lambda s, text: s.request(session.SubscribeRequest, text),
    "unsubscribe": lambda s, text: s.request(session.UnsubscribeRequest, text),
    "publish": Scenario.publish,
    "deliver": Scenario.deliver,
    "settle": Scenario.settle,
    "lose": Scenario.lose,
    "double": Scenario.double,
    "cut": Scenario.cut,
    "heal": lambda s, text: s._dial(*text.split()),
    "crash": lambda s, name: s.restart(name, remember=True),
    "amnesia": lambda s, name: s.restart(name, remember=False),
    "backup": lambda s, name: s._backups.update({name: list(s.journals[name])}),
    "restore": Scenario.restore,
    "add": Scenario.add,
    "remove": Scenario.remove,
    "time": Scenario.time,
    "ahead": lambda s, text: s._ahead_s.update({text.split()[0]: float(text.split()[1])}),
    "down": Scenario._stop,
    "up": Scenario.up,
    "tables": Scenario.tables,
    "clients": Scenario.clients,
    **TX_VERBS,
}


# ── words ────────────────────────────────────────────────────────────────────────────────


def _greeting(client: str, resume: str | None, words: list[str]) -> session.ClientHello:
    total_order = "total" in words
    instance = "".join(word for word in words if word != "total" and not word.startswith("keep="))
    kept = [float(word.removeprefix("keep=")) for word in words if word.startswith("keep=")]
    keep_s = sum(kept, 0.0)
    return session.ClientHello(
        PROTOCOL_VERSION, client, resume, b"", instance, keep_s=keep_s, total_order=total_order
    )


def _unexpected(failure: Exception) -> None:
    raise failure


# ── files ────────────────────────────────────────────────────────────────────────────────


def replay(path: Path) -> str:
    """The text of a scenario file with the outcomes that really came."""
    scenario, written = Scenario(), []
    skipping = False
    for line in path.read_text().splitlines():
        if line == "----":
            skipping = True
            continue
        if skipping and line:
            continue
        skipping = False
        written.append(line)
        if line and not line.startswith("#"):
            written.append("----")
            written.extend(scenario.run(line))
    return "\n".join(written) + "\n"
