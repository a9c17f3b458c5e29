"""Scenarios: races between brokers as text, with every message on the page.

A scenario file is a list of commands, each followed by `----` and its expected outcome. Frames
between brokers wait in their link until the scenario delivers, loses or duplicates them, so that
the author decides which messages cross. `replay(path)` runs a file and returns it with the actual
outcomes; a test compares the two.

    overlay A-B B-C            brokers and links; `overlay covering A-B` turns covering on,
                               `overlay retract A-B` the kind that takes back,
                               `overlay keep=3 A-B` keeps three messages for an absent broker, and
                               `overlay sure A-B` gives brokers pubends
    ahead A 3                  the clock of A is three seconds ahead
    down A · up A              kill a broker; start it again from its journal
    connect alice A [p1]       a client says hello, as process p1; goodbye alice · vanish alice
    connect bob A total        a client in total order
    connect bob A p1 keep=60   a durable client; leave bob: its process ends, its session does not
    resume alice A A-1.2 [p1]  a client reconnects and asks to resume session A-1.2
    advertise alice x > 1      and: subscribe, unadvertise alice 1, unsubscribe alice 1
    publish alice x=5 y='a'    one event, exactly-once if the overlay is sure; best-effort alice x=5
    resend alice x=5 y='a'     the same with the number of the last one
    deliver A B [n]            hand over the oldest frame(s) of a link; settle: all of them
    lose A B · double A B      lose or duplicate the oldest frame
    late A B                   the oldest frame falls behind all others
    cut A B · heal A B         break a link's connection; dial it again
    crash A · amnesia A        kill and restart, from the journal or without state
    backup A · restore A       keep a copy of the journal; kill and restart from that copy
    trim A                     the log of A's pubend drops what all clients have acknowledged
    add B-C · remove B-C       let C join a running overlay as a neighbour of B, or leave it
    time 5                     let time pass; timers fire in order
    tables A · clients A       show the routing tables, or the sessions and where they come from

In transactions:

    begin alice T1 [none]      alice begins a transaction, named T1 in the scenario: isolated,
                               or not if `none`; optionally key=k and timeout=3
    in T1 bob subscribe x > 1  an operation of bob in it; or: unsubscribe 2, advertise, unadvertise,
                               publish x=5, invite x=5
    answer bob T1 [words]      bob has done its part; with words, it refuses
    commit alice T1            and: abort alice T1 [words]
    plan T1 bob subscribe x > 1   one more step of a plan; play alice T1: execute it
    consent bob                bob's broker may carry out bob's part of plans
    outcome alice T1           alice asks for the outcome
    read bob                   bob acknowledges all events that it was given
    open A                     show what a broker knows of unfinished transactions

Moves:

    move alice C [3]           alice asks to be moved to C, within ten seconds or as many as said
    order A alice C [3]        an operator asks A for the same
    drain A · refill A         an operator wants A to take in no sessions, or to take them in again
    arrive alice [A] [p1]      alice connects where she was last told that her session is, or to A,
                               and continues it behind what she has received
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from motet.broker.core.durable import Durable
from motet.errors import StaleState
from motet.model import Filter, OpId, Value, encode_event
from motet.model.coverage import RETRACT, Covering
from motet.protocol.config import OUTBOX_BOUND, BrokerConfig
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
from motet.protocol.delivery.messages import Delivered
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link import messages as link
from motet.protocol.mobility import messages as mobility
from motet.protocol.session import messages as session
from motet.protocol.transactions.messages import Step
from motet.testing.brokers import Core
from motet.testing.clock import Agenda
from motet.testing.pubend import SimulatedPubend
from motet.testing.words import hop_of, number_from, op_of, tell, tx_of


class Scenario:
    """The brokers, the clients, and the frames in transit between them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.brokers: dict[str, Core] = {}
        self.journals: dict[str, list[Fact]] = {}
        self.wires: dict[tuple[str, str], deque[tuple[int, Frame]]] = {}
        self.ends: dict[tuple[str, int], str] = {}
        self.homes: dict[str, str] = {}
        self.counters: dict[str, int] = {}
        self.timers: dict[tuple[str, TimerKey], float] = {}
        self._connections = 0
        self._edges: list[tuple[str, str]] = []
        self._covering: Covering = False
        self._sure = False
        self._pubends: dict[str, SimulatedPubend] = {}
        self._ahead_s: dict[str, float] = {}
        self._bound = OUTBOX_BOUND
        self._lives: dict[str, int] = {}
        self._backups: dict[str, list[Fact]] = {}
        self._founded: dict[str, BrokerConfig] = {}
        self.book = Book()

    def run(self, command: str) -> list[str]:
        """Carry out one command; returns the lines of its outcome."""
        self.lines = []
        verb, _, rest = command.partition(" ")
        VERBS[verb](self, rest)
        return self.lines

    # ── the stage ────────────────────────────────────────────────────────────────────────

    def overlay(self, text: str) -> None:
        for word in text.split():
            if word == "covering":
                self._covering = True
            elif word == RETRACT:
                self._covering = RETRACT
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
        core = Core(self._founded[name], durable)
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
        if not remember:  # greater than any earlier life, as a clock would be
            self._lives[name] = before.durable.links.lives + 1
        self._start(name, self.journals[name] if remember else [])
        if remember:
            same = self.brokers[name].durable.digest() == before.durable.digest()
            self.lines.append(f"{name} replayed {'the same state' if same else 'ANOTHER STATE'}")
        for left, right in self._edges:
            if name in (left, right):
                self._dial(left, right)

    # ── changes ──────────────────────────────────────────────────────────────────────────

    def trim(self, name: str) -> None:
        pubend = self._pubends[name]
        pubend.acknowledged(self.brokers[name].done_with())
        self.lines.append(f"the log of {name} begins above {pubend.floor}")

    def add(self, text: str) -> None:
        """A new broker on the right; the one on the left is told of it first."""
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
        if objection is not None:
            self.lines.append(f"{left} refuses: {objection.text}")
            return
        self._step(left, Reconfigured(near))
        self._edges.remove((left, right))
        self._stop(right)

    def restore(self, name: str) -> None:
        """Restart from an older copy; the broker is not told that it is one."""
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
        self.homes[hello.client] = broker
        self.call(broker, hello.client, hello)

    def call(self, broker: str, caller: str, frame: Frame) -> None:
        """Somebody connects to a broker, and this is the first frame."""
        self._connections += 1
        self.ends[broker, self._connections] = caller
        self._step(broker, Received(self._connections, frame))

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

    def publish(self, text: str, *, sure: bool | None = None) -> None:
        client, rest = text.split(maxsplit=1)
        counter = f"{client} published"
        self.counters[counter] += 1
        sure = self._sure if sure is None else sure
        told = session.Publish(self.counters[counter], [body_of(rest)], sure)
        self._from_client(client, told)

    def resend(self, text: str) -> None:
        self.counters[f"{text.split(maxsplit=1)[0]} published"] -= 1
        self.publish(text)

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

    def late(self, text: str) -> None:
        sender, receiver = text.split()
        wire = self.wires[sender, receiver]
        wire.rotate(-1)
        self.lines.append(f"late is {tell(wire[-1][1])}")

    def _hand_over(self, sender: str, receiver: str) -> None:
        """Deliver the oldest frame and the acknowledgements before it, which would be noise."""
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
        for connection, error, text, _ in out.close:
            other = self.ends.pop((broker, connection), None)
            if other is None:
                continue
            self.lines.append(f"{broker} closes {other}: {error or text}")
            if error == StaleState.__name__:
                self._stop(other, text)

        if out.log:  # before the items that wait for the confirmation
            self._pubends[broker].append(out.log)
            self._step(broker, Logged(self._pubends[broker].durable))
        if out.confirm:
            self._step(broker, Persisted(out.confirm))
        if out.forgotten:
            self._pubends[broker].forget(out.forgotten)
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
            f"{op_of(w.op)} for {' '.join(state.bits.names(state.missing(w)))}"
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
            self.lines.append("no client")


# ── texts ────────────────────────────────────────────────────────────────────────────────


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


# ── transactions ──────────────────────────────────────────────────────────────────────────


ROUTING: dict[str, type] = {
    "subscribe": session.SubscribeRequest,
    "advertise": session.AdvertiseRequest,
    "unsubscribe": session.UnsubscribeRequest,
    "unadvertise": session.UnadvertiseRequest,
}


class Book:
    """The scenario's names of transactions, and what clients have been told of them."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.plans: dict[str, list[tuple[str, Step]]] = {}
        self.made: dict[tuple[str, str], int] = {}
        self.invited: dict[tuple[str, str], list[session.Invited]] = {}
        """By client and transaction."""
        self.given: dict[str, dict[str, int]] = {}
        """By client and pubend: the last tick that it has been told of."""
        self.epochs: dict[str, str] = {}
        self.moves: dict[str, int] = {}
        """How many moves each client has asked for."""
        self.told: dict[str, mobility.Moved] = {}
        """Where clients were sent."""

    def hear(self, client: str, frame: object) -> None:
        if isinstance(frame, session.Welcome):
            self.epochs[client] = frame.epoch
        elif isinstance(frame, mobility.Moved):
            self.told[client] = frame
        elif isinstance(frame, session.Invited):
            self.invited.setdefault((client, frame.tx), []).append(frame)
        elif isinstance(frame, Delivered):
            self.given.setdefault(client, {})[frame.pubend] = frame.upto

    def next_order(self, client: str, tx: str) -> str:
        invited = self.invited.get((client, tx), [])
        self.made[client, tx] = self.made.get((client, tx), 0) + 1
        place = f"{self.made[client, tx]:08d}"
        return f"{invited[-1].order}/{place}" if invited else place


def _ask(stage: Scenario, client: str, kind: type, *args: Any, **settings: Any) -> None:
    stage.counters[client] += 1
    stage._from_client(client, kind(stage.counters[client], *args, **settings))


def _begin(stage: Scenario, text: str) -> None:
    client, name, *words = text.split()
    settings: dict[str, Any] = {"isolated": "none" not in words, **_settings(words)}
    _name(stage, client, name)
    _ask(stage, client, session.BeginRequest, **settings)


def _settings(words: list[str]) -> dict[str, Any]:
    pairs = dict(word.split("=") for word in words if "=" in word)
    found: dict[str, Any] = {"key": pairs["key"]} if "key" in pairs else {}
    return {**found, "timeout_s": float(pairs["timeout"])} if "timeout" in pairs else found


def _name(stage: Scenario, client: str, name: str) -> None:
    """Name the transaction that the next request begins."""
    known = stage.brokers[stage.homes[client]].durable.sessions.get(client)
    assert known is not None, f"{client} has no session"
    stage.book.names[name] = f"{client}/{known.epoch}/{stage.counters[client] + 1}"


def _in(stage: Scenario, text: str) -> None:
    name, client, verb, rest = text.split(maxsplit=3)
    tx = stage.book.names[name]
    tag = session.Tag(tx, stage.book.next_order(client, tx))
    _operate(stage, client, verb, rest, tag)


def _operate(stage: Scenario, client: str, verb: str, rest: str, tag: session.Tag) -> None:
    if verb in ROUTING:
        what = number_from(rest) if verb.startswith("un") else Filter.parse(rest)
        _ask(stage, client, ROUTING[verb], what, tag=tag)
        return
    kind = {"publish": session.StageRequest, "invite": session.InviteRequest}[verb]
    _ask(stage, client, kind, tag, body_of(rest))


def _answer(stage: Scenario, text: str) -> None:
    client, name, *words = text.split(maxsplit=2)
    tx = stage.book.names[name]
    invited = stage.book.invited.get((client, tx), [])
    op = invited[-1].op if invited else OpId("", "", 0)  # an answer without an invitation
    refusal = "".join(words)
    _ask(stage, client, session.AnswerRequest, tx, op, refusal)


def _end(stage: Scenario, text: str, *, commit: bool) -> None:
    client, name, *words = text.split(maxsplit=2)
    tx, reason = stage.book.names[name], "".join(words)
    _ask(stage, client, session.EndRequest, tx, commit, reason)


def _plan(stage: Scenario, text: str) -> None:
    name, client, verb, rest = text.split(maxsplit=3)
    steps = stage.book.plans.setdefault(name, [])
    order = f"{len(steps) + 1:08d}"
    if verb in ("subscribe", "advertise"):
        step = Step(verb, order, rest, Filter.parse(rest))
    elif verb == "publish":
        step = Step(verb, order, body=bytes(body_of(rest)))
    else:
        step = Step(verb, order, rest)
    steps.append((client, step))


def _play(stage: Scenario, text: str) -> None:
    client, name, *words = text.split()
    parts: dict[str, list[Step]] = {}
    for who, step in stage.book.plans[name]:
        parts.setdefault(who, []).append(step)
    _name(stage, client, name)
    told = tuple((who, tuple(steps)) for who, steps in parts.items())
    settings = _settings(words)
    _ask(stage, client, session.ExecuteRequest, told, **settings)


def _consent(stage: Scenario, client: str) -> None:
    _ask(stage, client, session.ConsentRequest)


def _outcome(stage: Scenario, text: str) -> None:
    client, name = text.split()
    tx = stage.book.names[name]
    _ask(stage, client, session.OutcomeRequest, tx)


def _read(stage: Scenario, client: str) -> None:
    for pubend, upto in list(stage.book.given.get(client, {}).items()):
        stage._from_client(client, session.Processed(pubend, upto))


def _open(stage: Scenario, broker: str) -> None:
    machine = stage.brokers[broker].durable.transactions
    for op in machine.root_requests.state.waiting:
        stage.lines.append(f"{tx_of(str(op))} waits for a way to the root")
    for local in machine.participant.state.locals.values():
        parts = [f"{client} with {part.version}" for client, part in local.parts.items()]
        waiting = [f"{each.client} invited" for each in local.invitations]
        stage.lines.append(f"{tx_of(local.tx)} open: {', '.join(parts + waiting) or 'no client'}")
    for tx, coordination in machine.coordinator.state.coordinations.items():
        stage.lines.append(f"{tx_of(tx)} coordinated here" + ", submitted" * coordination.submitted)
    for asked in machine.invitations.state.asked.values():
        missing = " ".join((*asked.neighbours, *asked.clients))
        stage.lines.append(f"{op_of(asked.op)} asked: {missing}")
    for flood in machine.courier.state.floods.values():
        stage.lines.append(f"{tx_of(flood.tx)} {flood.what}, waits for {' '.join(flood.missing)}")
    for tx, gathering in machine.decider.state.gatherings.items():
        stage.lines.append(f"{tx_of(tx)} waits for the parts of {' '.join(gathering.missing)}")
    for submission in machine.decider.state.queue:
        stage.lines.append(f"{tx_of(submission.tx)} submitted" + ", asked" * submission.asked)
    for tx, active in machine.decisions.state.active.items():
        missing = " ".join(active.missing)
        cut = ", no cut yet" * machine.cutter.must_cut(tx)
        waits = f", waits for {missing}" if missing else ""
        stage.lines.append(f"{tx_of(tx)} decided as {active.decide.number}{waits}{cut}")
    for tx, block in machine.cutter.state.blocks.items():
        stage.lines.append(f"{tx_of(tx)} cut at {block.tick}, not logged")
    if not stage.lines:
        stage.lines.append("nothing")


def body_of(text: str) -> Raw:
    """An event from a scenario's text: x=5 y='a'."""
    return Raw(encode_event(dict(_attribute(word) for word in text.split()), b""))


def _attribute(word: str) -> tuple[str, Value]:
    name, _, text = word.partition("=")
    return name, text.strip("'") if text.startswith("'") else int(text)


# ── moves ────────────────────────────────────────────────────────────────────────────────


def _move(stage: Scenario, text: str) -> None:
    client, to, *seconds = text.split()
    number = stage.book.moves[client] = stage.book.moves.get(client, 0) + 1
    stage._from_client(client, mobility.MoveRequest(number, to, *map(float, seconds)))


def _order(stage: Scenario, text: str) -> None:
    broker, client, to, *seconds = text.split()
    stage.call(broker, OPERATOR, mobility.MoveOrder(client, to, *map(float, seconds)))


def _drain(stage: Scenario, broker: str, draining: bool) -> None:
    stage.call(broker, OPERATOR, mobility.DrainOrder(draining))


def _arrive(stage: Scenario, text: str) -> None:
    client, *words = text.split()
    book = stage.book
    told = book.told[client]
    broker = words.pop(0) if words and words[0] in stage.brokers else told.broker
    hello = replace(
        _greeting(client, book.epochs[client], words),
        cursors=dict(book.given.get(client, {})),
        published=stage.counters[f"{client} published"],
    )
    stage.homes[client] = broker
    stage.call(broker, client, mobility.ArrivalHello(PROTOCOL_VERSION, hello, told.number))


OPERATOR = "operator"

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
    "best-effort": lambda s, text: s.publish(text, sure=False),
    "resend": Scenario.resend,
    "deliver": Scenario.deliver,
    "settle": Scenario.settle,
    "lose": Scenario.lose,
    "double": Scenario.double,
    "late": Scenario.late,
    "cut": Scenario.cut,
    "heal": lambda s, text: s._dial(*text.split()),
    "crash": lambda s, name: s.restart(name, remember=True),
    "amnesia": lambda s, name: s.restart(name, remember=False),
    "backup": lambda s, name: s._backups.update({name: list(s.journals[name])}),
    "restore": Scenario.restore,
    "trim": Scenario.trim,
    "add": Scenario.add,
    "remove": Scenario.remove,
    "time": Scenario.time,
    "ahead": lambda s, text: s._ahead_s.update({text.split()[0]: float(text.split()[1])}),
    "down": Scenario._stop,
    "up": Scenario.up,
    "tables": Scenario.tables,
    "clients": Scenario.clients,
    "begin": _begin,
    "in": _in,
    "answer": _answer,
    "commit": lambda stage, text: _end(stage, text, commit=True),
    "abort": lambda stage, text: _end(stage, text, commit=False),
    "plan": _plan,
    "play": _play,
    "consent": _consent,
    "outcome": _outcome,
    "read": _read,
    "open": _open,
    "move": _move,
    "order": _order,
    "drain": lambda stage, broker: _drain(stage, broker, True),
    "refill": lambda stage, broker: _drain(stage, broker, False),
    "arrive": _arrive,
}


# ── files ────────────────────────────────────────────────────────────────────────────────


def replay(path: Path) -> str:
    """The text of a scenario file with the actual outcomes."""
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
