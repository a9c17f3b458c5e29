"""The courier: letters to one broker, and questions that flood from the root and are echoed to it.

A broker answers a question once all neighbours behind it have echoed it. The answer goes back to
the neighbour that asked. At the root, `ask`, `echoed` and `forget` return it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from motet.model import Hop, OpId
from motet.protocol.contract import CancelTimer, SetTimer, TimerKey
from motet.protocol.routing.messages import RoutingMessage
from motet.protocol.routing.starts import broker_of_pubend
from motet.protocol.routing.state import HERE, RoutingState, announced_home
from motet.protocol.session.messages import Decided, Done, Failed, Invited, Over
from motet.protocol.transactions.messages import (
    Ask,
    Echoed,
    Engage,
    Letter,
    LetterBody,
    Opening,
    Prepare,
    Tell,
    ToClient,
    TxMessage,
    Withdraw,
    op_of,
)
from motet.protocol.transactions.state import Block, CourierState, Flood, Held, Ignored, Move, Moves

# ── timers: typed values, and text only in timer keys and in journaled facts ──────────────

_QUESTION, _WATCH = "? ", "! "
"""Prefixes of timer texts; `Overdue` has none."""


class Overdue(Struct, frozen=True):
    """A transaction with local participants, or a decision, takes too long."""

    tx: str


class Unanswered(Struct, frozen=True):
    """A local client's request waits for an answer of the root, or for a route to it."""

    op: OpId


class Abandoned(Struct, frozen=True):
    """At the root: nothing more was heard of a transaction, or its validation takes too long."""

    tx: str


TxTimer = Overdue | Unanswered | Abandoned


def text_of(timer: TxTimer) -> str:
    if isinstance(timer, Unanswered):
        return f"{_QUESTION}{timer.op}"
    return f"{_WATCH}{timer.tx}" if isinstance(timer, Abandoned) else timer.tx


def parse_timer(text: str) -> TxTimer:
    if text.startswith(_QUESTION):
        return Unanswered(op_of(text.removeprefix(_QUESTION)))
    if text.startswith(_WATCH):
        return Abandoned(text.removeprefix(_WATCH))
    return Overdue(text)


def timer_key(timer: TxTimer) -> TimerKey:
    return ("transaction", text_of(timer))


# ── effects ──────────────────────────────────────────────────────────────────────────────


class TxEffects(Struct):
    """Effects in order: messages to neighbours, routing, notifications of local clients."""

    messages: list[tuple[str, TxMessage]] = []
    routes: list[tuple[RoutingMessage, Hop]] = []
    followed: list[tuple[str, str]] = []
    """By transaction and client: parts of plans that are complete once the routes above are in the
    tables."""
    refused: list[Withdraw] = []
    """Withdrawals that are sent to the root after that."""
    made: list[tuple[OpId, str, str]] = []
    """What plans have added for local clients: operation, kind, name."""
    answers: list[tuple[OpId, Done | Failed]] = []
    tell: list[tuple[str, Invited | Decided | Over]] = []
    timers: list[SetTimer | CancelTimer] = []
    blocks: list[Block] = []
    """Cuts to be written to our log."""
    ending: list[OpId] = []
    """Subscriptions of local clients that end once they have passed all cuts."""
    settled: list[OpId] = []
    """Subscriptions that have begun, or ended, at all pubends."""
    released: list[Held] = []
    """Requests of local clients that have waited for a transaction to settle, or for a route."""
    doubts: bool = False
    """Probe all neighbours: a subscription that has begun may still be on its way here."""
    moved_on: bool = False
    """What had to be kept because of a transaction may go."""


class Clock(Protocol):
    now: float


class Outgoing:
    """Collects the effects of all parts of the room; the broker takes them out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.wanted: list[TxEffects] = []
        """At most one."""

    @property
    def now(self) -> float:
        """The time of the fact that is being applied."""
        return self._clock.now

    @property
    def effects(self) -> TxEffects:
        wanted = self.wanted
        if not wanted:
            wanted.append(TxEffects())
        return wanted[0]

    def answer(self, op: OpId, reply: Done | Failed) -> None:
        self.effects.answers.append((op, reply))

    def fail(self, op: OpId, error: str, text: str) -> None:
        self.answer(op, Failed(op.sequence, error, text))

    def tell(self, client: str, told: Invited | Decided | Over) -> None:
        self.effects.tell.append((client, told))

    def route(self, message: RoutingMessage, source: Hop) -> None:
        self.effects.routes.append((message, source))

    def set_timer(self, timer: TxTimer, at: float) -> None:
        self.effects.timers.append(SetTimer(timer_key(timer), at))

    def cancel_timer(self, timer: TxTimer) -> None:
        self.effects.timers.append(CancelTimer(timer_key(timer)))


# ── letters and questions ────────────────────────────────────────────────────────────────

OPENING, PREPARE = "opening", "prepare"
"""The kinds of questions, as in `Echoed`."""


class FloodPhase(Move):
    UNKNOWN = "unknown"
    ASKED = "asked"
    ECHOED = "echoed"


class FloodEvent(Move):
    ASK = "a question"
    ECHO = "an echo"
    LAST_ECHO = "the last echo"
    STRAY_ECHO = "an echo that is not awaited"
    DECISION = "a decision"


MOVES: Moves[FloodPhase, FloodEvent] = Moves(
    "the question about",
    {
        FloodPhase.UNKNOWN: {
            FloodEvent.ASK: FloodPhase.ASKED,
            FloodEvent.STRAY_ECHO: Ignored("it was decided meanwhile"),
            FloodEvent.DECISION: Ignored("nothing was asked"),
        },
        FloodPhase.ASKED: {
            # The link has restarted, and the neighbour repeats its question.
            FloodEvent.ASK: FloodPhase.ASKED,
            FloodEvent.ECHO: FloodPhase.ASKED,
            FloodEvent.LAST_ECHO: FloodPhase.ECHOED,
            FloodEvent.STRAY_ECHO: Ignored("that neighbour has echoed it, or is gone"),
            FloodEvent.DECISION: FloodPhase.UNKNOWN,
        },
        FloodPhase.ECHOED: {},  # then it is forgotten, and so UNKNOWN
    },
)


class Courier:
    def __init__(self, name: str, root: str, tables: RoutingState, out: Outgoing) -> None:
        self.name = name
        self.root = root
        self.state = CourierState()
        self._tables = tables
        self._out = out
        self._readers: Mapping[type, Callable[[Any], None]] = {}

    @property
    def is_root(self) -> bool:
        return self.root == self.name

    def deliver_to(self, readers: Mapping[type, Callable[[Any], None]]) -> None:
        """Set the readers of letters to this broker, by type of letter."""
        self._readers = readers

    # ── routes ───────────────────────────────────────────────────────────────────────────

    def towards(self, broker: str) -> str | None:
        """The next hop to a broker; empty: this broker; None: unreachable now."""
        if broker == self.name:
            return ""
        for pubend, hop in self._tables.pubends.items():
            if hop != HERE and broker_of_pubend(pubend) == broker:
                return hop.name
        return None

    def towards_coordinator(self, tx: str) -> str | None:
        """As `towards`; if no session of it is known, towards the broker that announced it."""
        client, epoch, _ = op_of(tx)
        hop = self._tables.clients.get((client, epoch))
        if hop is None:
            return self.towards(announced_home(epoch))
        return hop.name if hop.is_broker else ""

    def others(self, source: str) -> list[str]:
        return [name for name in self._tables.bits.neighbours if name != source]

    # ── messages and letters ─────────────────────────────────────────────────────────────

    def send(self, neighbour: str, message: TxMessage) -> None:
        """Does nothing if that broker is no longer a neighbour."""
        if neighbour in self._tables.bits.neighbours:
            self._out.effects.messages.append((neighbour, message))

    def flood(self, message: TxMessage, source: str) -> list[str]:
        """Send to all neighbours except the one that it came from; returns them."""
        others = self.others(source)
        self._out.effects.messages += [(neighbour, message) for neighbour in others]
        return others

    def post(self, broker: str, body: LetterBody) -> None:
        """A letter to an unreachable broker is lost; timeouts make up for that."""
        towards = self.towards(broker)
        if towards:
            self.send(towards, Letter(broker, body))
        elif towards == "":
            self._readers[type(body)](body)

    def follow(self, body: ToClient) -> None:
        """A letter to a client's broker follows the client routing table from hop to hop: brokers
        off the path of a move know the direction of a session, but not its broker. If no such
        session is known, the letter goes to the broker that announced it."""
        client, epoch = self._addressee(body)
        hop = self._tables.clients.get((client, epoch))
        if hop is None:
            self.post(announced_home(epoch) if epoch else self.name, body)
        elif hop.is_broker:
            home = self._tables.clients.home_of(client, epoch)  # or a former one
            self.send(hop.name, Letter(home, body))
        else:
            self._readers[type(body)](body)

    def _addressee(self, body: ToClient) -> tuple[str, str]:
        """The session that a letter is for; the epoch is empty if no session is known here."""
        if isinstance(body, Engage):
            return body.client, self._tables.clients.newest(body.client) or ""
        op = body.op if isinstance(body, Tell) else op_of(body.tx)
        return op.client, op.epoch

    def forward(self, letter: Letter, source: Hop) -> None:
        del source
        body = letter.body
        is_for_root = isinstance(body, Ask) and body.reached
        if (
            isinstance(body, ToClient)
            and not is_for_root
            and self._addressee(body) in self._tables.clients
        ):
            self.follow(body)
        else:
            self.post(letter.broker, body)

    # ── questions ────────────────────────────────────────────────────────────────────────

    def ask(self, message: Opening | Prepare, source: str, objection: str = "") -> Flood | None:
        """Pass a question on; `objection` is our own answer to it. Returns the complete answer if
        there is one already and this broker asked the question."""
        what = OPENING if isinstance(message, Opening) else PREPARE
        MOVES.next(self._phase(what, message.tx), FloodEvent.ASK, message.tx)
        others = self.flood(message, source)
        flood = Flood(message.tx, what, source, dict.fromkeys(others), objection)
        self.state.floods[what, message.tx] = flood
        return self._ebb(flood)

    def echoed(self, message: Echoed, source: str) -> Flood | None:
        return self._echo(message.what, message.tx, source, message.objection)

    def forget(self, neighbour: str) -> Iterator[Flood]:
        """The neighbour has lost its state: its answers are not awaited any more, and what was read
        behind it cannot be validated. Yields our own questions that this completes."""
        for flood in list(self.state.floods.values()):
            if neighbour in flood.missing:
                gone = f"{neighbour} was lost; run it again" if flood.what == PREPARE else ""
                answered = self._echo(flood.what, flood.tx, neighbour, gone)
                if answered is not None:
                    yield answered

    def ask_again(self, neighbour: str) -> None:
        """The link restarts from scratch, and the neighbour may have lost our questions."""
        for flood in self.state.floods.values():
            if neighbour in flood.missing:
                opening = flood.what == OPENING
                self.send(neighbour, Opening(flood.tx) if opening else Prepare(flood.tx))

    def waiting_for(self, what: str, tx: str) -> list[str]:
        return list(self.state.floods[what, tx].missing)

    def decided(self, tx: str) -> None:
        """Drop the questions about a decided transaction."""
        for what in (OPENING, PREPARE):
            if MOVES.next(self._phase(what, tx), FloodEvent.DECISION, tx) is not None:
                del self.state.floods[what, tx]

    def _echo(self, what: str, tx: str, source: str, objection: str) -> Flood | None:
        flood = self.state.floods.get((what, tx))
        if flood is None or source not in flood.missing:
            event = FloodEvent.STRAY_ECHO
        else:
            event = FloodEvent.ECHO if len(flood.missing) > 1 else FloodEvent.LAST_ECHO
        after = MOVES.next(self._phase(what, tx), event, tx)
        if after is None or flood is None:
            return None
        del flood.missing[source]
        flood.objection = flood.objection or objection
        return self._ebb(flood)

    def _ebb(self, flood: Flood) -> Flood | None:
        if flood.missing:
            return None
        del self.state.floods[flood.what, flood.tx]
        if flood.source:
            self.send(flood.source, Echoed(flood.tx, flood.what, flood.objection))
            return None
        return flood

    def _phase(self, what: str, tx: str) -> FloodPhase:
        return FloodPhase.ASKED if (what, tx) in self.state.floods else FloodPhase.UNKNOWN
