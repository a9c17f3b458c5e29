"""Clients that move, in the simulator: who asks for moves, and where sessions have been.

Clients ask for moves themselves, one after the other, or an operator orders them, also of durable
clients that are away. Some moves are disturbed on purpose: without aim, few faults would hit the
short time that a move takes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import TYPE_CHECKING

from motet.audit.records import DONE, MoveRecord, Stay
from motet.client.session.state import Redirected, Resolved, Welcomed
from motet.errors import MotetError
from motet.protocol.contract import Input, Received
from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.messages import (
    ArrivalHello,
    MoveCommit,
    Moved,
    MoveDone,
    MoveOffer,
    MoveOrder,
    MoveOrdered,
    MoveRefusal,
    MoveReply,
    MoveRequest,
    Strays,
)
from motet.protocol.session.facts import SessionEnded
from motet.protocol.session.messages import Farewell
from motet.testing.checkers import copies, moves
from motet.testing.history import OrderRecord
from motet.testing.topology import edge_of
from motet.testing.transport import Connection, End

if TYPE_CHECKING:
    from motet.protocol.contract import Output
    from motet.testing.brokers import SimulatedBroker
    from motet.testing.clients import SimulatedClient
    from motet.testing.cluster import Cluster

TIMEOUTS_S = (10.0, 10.0, 3.0, 0.5, 0.02)
KINDS = ("move", "tour", "order", "both", "nowhere")
WEIGHTS = (5.0, 3.0, 1.5, 0.7, 0.15)
PAUSE_S = 0.3
"""The longest time until the next move of a tour."""
PASSING = ("InTransaction", "MoveRefused")
"""Refusals that a later attempt may not get."""
ATTEMPTS = 4
MISINFORMED = 0.15
"""The share of operators that ask the wrong broker."""
NOWHERE = "B99"
WAITS_S = (1.0, 3.0)
"""The time that a client waits for a welcome before it tries its former broker."""
IMPATIENT = 0.2
"""The share of moves whose client opens a new session after a while."""
PATIENCE_S = (0.3, 3.0)
LONGEST_S = 60.0
"""Longer than any move takes, unless its session is lost."""
HARMS = ("kill source", "kill target", "kill path", "cut", "drop", "snapshot")
HARM_S = 0.15
OF_MOVES = (
    *(MoveRequest, MoveOrder, MoveRefusal, MoveOrdered, Moved, ArrivalHello),
    *(MoveOffer, MoveReply, Strays, MoveCommit, MoveDone),
)
DROP_S = 0.03


def is_of_a_move(given: Input, out: Output) -> bool:
    """Does a broker get, decide or send something of a move in this step?"""
    frames = [frame for _, frame in (*out.send, *out.deliver)]
    if isinstance(given, Received):
        frames.append(given.frame)
    if any(isinstance(fact.body, MoveDecided) for fact in out.persist):
        return True
    for frame in frames:
        parts = frame.messages if type(frame) is Control else (frame,)
        if any(isinstance(part, OF_MOVES) for part in parts):
            return True
    return False


class Mover:
    """The part of a simulated client that moves."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self._cluster = client.cluster
        self._random = Random(f"mover {client.cluster.seed} {client.instance}")
        self._asked: MoveRecord | None = None
        self.former = ""
        """The broker that has sent us on, until we are welcomed."""
        self._sent_on_at = inf
        self._impatient_at = inf
        self.tour: list[str] = []
        """Where it moves next."""
        self._attempts = 0

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def move(self, to: str, timeout_s: float) -> bool:
        """Ask for a move, unless one is under way."""
        client, machine = self._client, self._client.machine
        before = (machine.broker, machine.epoch)
        try:
            handle = machine.move(to, timeout_s)
        except MotetError:
            return False
        now = self._cluster.agenda.now
        who = (client.name, client.instance, handle)
        self._asked = MoveRecord(*who, to, timeout_s, now, before)
        self._cluster.history.moves.append(self._asked)
        client._called(handle, "move")
        return True

    def resolved(self, answer: Resolved) -> None:
        asked, machine = self._asked, self._client.machine
        if asked is None or asked.handle != answer.handle:
            return
        self._asked = None
        asked.answered_at = self._cluster.agenda.now
        asked.after = (machine.broker, machine.epoch)
        asked.answer, asked.value = "Done", answer.value
        if answer.failure is not None:
            asked.answer, asked.text, asked.missing = answer.failure
        asked.kind = self._kind()
        self._attempts = self._attempts + 1 if asked.answer in PASSING else 0
        if 0 < self._attempts < ATTEMPTS:
            self.tour.insert(0, asked.to)
        if self.tour:
            delay_s = self._random.random() * PAUSE_S
            self._cluster.agenda.after(delay_s, self._go_on)

    def _kind(self) -> str:
        client = self._client
        publishes, subscribes = client.standing("advertise"), client.standing("subscribe")
        found = "subscriber" if subscribes else "neither"
        if publishes:
            found = "both" if subscribes else "publisher"
        if client.machine.total_order:
            found += ", total order"
        return found + ", durable" * (client.process is not None)

    def begin(self, tour: list[str]) -> None:
        self.tour = tour
        self._go_on()

    def _go_on(self) -> None:
        client = self._client
        if self.tour and client.alive and not client.over and self._cluster.acting:
            self.move(self.tour.pop(0), self._random.choice(TIMEOUTS_S))
        else:
            self.tour.clear()

    # ── under way ────────────────────────────────────────────────────────────────────────

    def sent_on(self, news: Redirected) -> None:
        """The former broker closes the connection, and so do we."""
        client, now = self._client, self._cluster.agenda.now
        if news.broker not in self._cluster.brokers:
            self._cluster.history.odd("moves", f"{client.name} is sent to {news.broker}")
            return
        if self._sent_on_at == inf:
            self._sent_on_at = now
            if self._cluster.menu.harmful and self._random.random() < IMPATIENT:
                self._impatient_at = now + self._random.uniform(*PATIENCE_S)
        self._cluster.history.travels[client.instance].begin(now)
        self.former, client.home = client.home, news.broker
        client.hang_up()
        client.connect_soon()

    def connected(self, end: End) -> None:
        """Wait for the welcome, but not for ever."""
        if self.former:
            wait_s = self._random.uniform(*WAITS_S)
            self._cluster.agenda.after(wait_s, self._wait_no_longer, end)

    def _wait_no_longer(self, end: End) -> None:
        client = self._client
        if client.end is end and client.machine.state == "greeting" and client.alive:
            client.hang_up()
            self._cluster.history.disturbed[client.instance].begin(self._cluster.agenda.now)
            client.machine.closed()
            self.turn_back()
            client.connect_soon()

    def turn_back(self) -> None:
        """No welcome: try the other one of the two brokers."""
        client, now = self._client, self._cluster.agenda.now
        if not self.former:
            return
        self.former, client.home = client.home, self.former
        if now >= min(self._impatient_at, self._sent_on_at + LONGEST_S):
            if now < self._impatient_at:
                self._cluster.gave_up(client)
            if self._asked is not None:
                self._asked.impatient = True
            client.machine.impatient()

    def welcomed(self, news: Welcomed) -> None:
        client = self._client
        self.former = ""
        self._sent_on_at = self._impatient_at = inf
        self._cluster.history.travels[client.instance].end(self._cluster.agenda.now)
        client.home = news.broker
        if client.process is not None:
            client.process.application.home = news.broker


class Operator:
    """Orders one move, and leaves with the answer."""

    name = "operator"

    def __init__(self, cluster: Cluster, broker: SimulatedBroker, client: str, to: str) -> None:
        self._cluster = cluster
        self.record = OrderRecord(client, broker.name, to, cluster.agenda.now)
        cluster.history.orders.append(self.record)
        connection = Connection(self, 0, broker, broker.new_number(), None)
        self._end = connection.ends[0]
        broker.accept(connection.ends[1])

    def ask(self, timeout_s: float) -> None:
        frame = MoveOrder(self.record.client, self.record.to, timeout_s)
        self._cluster.network.carry(self._end, frame)

    def receive(self, end: End, frame: Frame) -> None:
        end.peer.backlog -= 1
        if isinstance(frame, MoveOrdered):
            self.record.answers.append(frame.error)
        elif isinstance(frame, Farewell):
            self.record.lost = self.record.lost or not self.record.answers
        else:
            self._cluster.history.odd("moves", f"an operator gets {frame}")
        if end.open and isinstance(frame, MoveOrdered):
            self._cluster.network.close(end)

    def lost(self, end: End) -> None:
        del end
        self.record.lost = self.record.lost or not self.record.answers


class Relocations:
    """Draws moves. Uses a random generator of its own, so that a seed's other draws do not depend
    on it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(f"moving {seed}")
        self._counted = 0

    def begin(self) -> None:
        if self._cluster.plan.move_s:
            self._next()

    def _next(self) -> None:
        delay_s = self._random.expovariate(1.0 / self._cluster.plan.move_s)
        self._cluster.agenda.after(delay_s, self._act)

    def _act(self) -> None:
        if not self._cluster.acting:
            return
        self._next()
        random = self._random
        kind = random.choices(KINDS, WEIGHTS)[0]
        if kind == "order":
            name = self._anybody()
            self._order(name)
            if self._cluster.menu.harmful and random.random() < self._cluster.plan.harmed:
                self._drop(name)
            return
        able = self._cluster.able()
        if not able:
            return
        client = random.choice(able)
        if kind == "move":
            self._start(client, [self._elsewhere(client.home)])
        elif kind == "tour":
            self._start(client, self._tour(client.home))
        elif kind == "nowhere":
            self._start(client, [random.choice((NOWHERE, client.home))])
        else:
            self._start(client, [self._elsewhere(client.home)])
            delay_s = random.random() * HARM_S
            self._cluster.agenda.after(delay_s, self._order, client.name)

    def _elsewhere(self, home: str) -> str:
        return self._random.choice([n for n in self._cluster.tree.brokers if n != home])

    def _tour(self, home: str) -> list[str]:
        """Back and forth, in a circle, or anywhere; often to the former broker again."""
        tour = [self._elsewhere(home)]
        for _ in range(self._random.randint(1, 3)):
            back = self._random.random() < 0.4
            tour.append(home if back and tour[-1] != home else self._elsewhere(tour[-1]))
        return tour

    def _start(self, client: SimulatedClient, tour: list[str]) -> None:
        former = client.home
        assert client.mover is not None
        first = tour[0]
        client.mover.begin(tour)
        if self._random.random() < self._cluster.plan.harmed and self._cluster.menu.harmful:
            self.harm(self._random, former, first, client.drop)

    # ── orders ───────────────────────────────────────────────────────────────────────────

    def _anybody(self) -> str:
        names = dict.fromkeys([*(c.name for c in self._cluster.clients if not c.over)])
        names |= dict.fromkeys(self._cluster.lasting.absent())
        return self._random.choice(list(names)) if names else ""

    def _order(self, name: str) -> None:
        cluster, random = self._cluster, self._random
        home = cluster.whereabouts.home_of(name)
        if not name or random.random() < MISINFORMED or home is None:
            home = random.choice(cluster.tree.brokers)
        broker = cluster.brokers[home]
        if broker.core is None or not cluster.acting:
            return
        to = self._elsewhere(home)
        absent = not any(each.name == name and each.open for each in cluster.clients)
        cluster.trace.note(cluster.agenda.now, f"an operator moves {name} from {home} to {to}")
        operator = Operator(cluster, broker, name, to)
        operator.record.absent = absent
        operator.ask(random.choice(TIMEOUTS_S))

    def _drop(self, name: str) -> None:
        """The client's connection breaks, and it comes again when it has been moved."""
        for client in self._cluster.able():
            if client.name == name:
                self._cluster.agenda.after(self._random.random() * DROP_S, client.drop)

    # ── harm ─────────────────────────────────────────────────────────────────────────────

    def harm(self, random: Random, source: str, target: str, drop: Callable[[], None]) -> None:
        cluster = self._cluster
        if target not in cluster.brokers or source == target:
            return
        path = cluster.tree.path(source, target)
        kind, delay_s = random.choice(HARMS), random.random() * HARM_S
        if kind == "drop":
            cluster.agenda.after(delay_s, drop)
        elif kind == "cut":
            at = random.randrange(len(path) - 1)
            wire = cluster.wires[edge_of(path[at], path[at + 1])]
            cluster.agenda.after(delay_s, cluster.mishaps.cut_link, wire)
        else:
            chosen = {"kill source": source, "kill target": target}.get(kind, random.choice(path))
            broker = cluster.brokers[chosen]
            if kind == "snapshot":
                cluster.agenda.after(delay_s, broker.take_snapshot)
            else:
                cluster.agenda.after(delay_s, cluster.mishaps.doom, broker)

    # ── results ──────────────────────────────────────────────────────────────────────────

    def count(self) -> dict[str, int]:
        """Moves by outcome."""
        found: dict[str, int] = {}
        history = self._cluster.history
        for move in history.moves:
            answer = move.answer or "unanswered"
            found[answer] = found.get(answer, 0) + 1
            if answer == DONE:
                for kind in move.kind.split(", "):
                    found[f"of {kind}"] = found.get(f"of {kind}", 0) + 1
        for order in history.orders:
            for answer in order.answers:
                title = f"ordered {answer or 'Done'}"
                found[title] = found.get(title, 0) + 1
                if order.absent and not answer:
                    found["of absent"] = found.get("of absent", 0) + 1
        return dict(sorted(found.items()))


class Whereabouts:
    """Watches where brokers have sessions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, dict[tuple[str, str], None]] = {}
        self.copies = copies.CopyWatch()
        self.runs = copies.RunWatch()
        self.moves = moves.MoveWatch()

    def home_of(self, client: str) -> str | None:
        """The broker that has a session of this client."""
        homes = (b for b, known in self._known.items() if any(c == client for c, _ in known))
        return next(homes, None)

    def look(self, broker: SimulatedBroker, out: Output | None = None) -> None:
        """A broker has started, or has written facts."""
        assert broker.core is not None
        before = self._known.get(broker.name, {})
        now = dict.fromkeys((s.client, s.epoch) for s in broker.core.durable.sessions)
        if now == before and out is not None:
            return
        self._known[broker.name] = now
        self.copies.look(broker.name, now, self._cluster.agenda.now)
        facts = [fact.body for fact in out.persist] if out is not None else []
        ended = {(f.client, f.epoch) for f in facts if isinstance(f, SessionEnded)}
        for session in before:
            if session not in now and session not in ended:
                self._gone(broker, session)
        for session in now:
            if session not in before:
                self._here(broker, session)

    def _here(self, broker: SimulatedBroker, session: tuple[str, str]) -> None:
        cluster, at = self._cluster, self._cluster.agenda.now
        stays = cluster.history.stays[session]
        if stays and stays[-1].broker == broker.name:
            stays[-1].left_at = inf  # a crash has undone that it left, or that it had not arrived
            return
        if stays:
            stays[-1].until = at
            cluster.lasting.arrived(session, broker)
        stays.append(Stay(broker.name, min(stays[-1].left_at, at) if stays else -inf))

    def _gone(self, broker: SimulatedBroker, session: tuple[str, str]) -> None:
        stays = self._cluster.history.stays[session]
        if stays and stays[-1].broker == broker.name:
            stays[-1].left_at = min(stays[-1].left_at, self._cluster.agenda.now)
