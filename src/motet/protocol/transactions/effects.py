"""What follows from a transaction's message, and what all parts of the machine share."""

from __future__ import annotations

from msgspec import Struct

from motet.model import Hop, OpId
from motet.model.epochs import broker_of
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.routing.messages import RoutingMessage
from motet.protocol.routing.starts import HERE, broker_of_pubend
from motet.protocol.routing.state import RoutingState
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import Decided, Done, Failed, Invited, Over
from motet.protocol.transactions.messages import Letter, LetterBody, TxMessage, Withdraw
from motet.protocol.transactions.state import Block, Held, TxState


class TxEffects(Struct):
    """In order: what goes to neighbours, what routing must do, what our clients hear."""

    messages: list[tuple[str, TxMessage]] = []
    routes: list[tuple[RoutingMessage, Hop]] = []
    followed: list[tuple[str, str]] = []
    """By transaction and client: parts of plans that are complete once the routes above are in
    the tables."""
    refused: list[Withdraw] = []
    """What the root hears after that."""
    made: list[tuple[OpId, str, str]] = []
    """What clients of ours have added by a plan: which, its kind, its name."""
    answers: list[tuple[OpId, Done | Failed]] = []
    tell: list[tuple[str, Invited | Decided | Over]] = []
    timers: list[SetTimer | CancelTimer] = []
    blocks: list[Block] = []
    """Cuts that must go into our log."""
    ending: list[OpId] = []
    """Subscriptions of our clients that end once they have passed all cuts."""
    settled: list[OpId] = []
    """Subscriptions that have begun, or ended, wherever they do."""
    released: list[Held] = []
    """Requests of our clients that have waited for a transaction to settle."""
    doubts: bool = False
    """Whether a subscription that has begun still comes here must be found out."""
    moved_on: bool = False
    """What had to stay because of a transaction may go, whoever hears of it."""

    @property
    def is_empty(self) -> bool:
        return not (
            self.messages
            or self.routes
            or self.answers
            or self.tell
            or self.timers
            or self.blocks
            or self.ending
            or self.followed
            or self.made
            or self.refused
            or self.settled
            or self.released
            or self.doubts
            or self.moved_on
        )


def op_of(tx: str) -> OpId:
    """The request that began a transaction."""
    client, epoch, number = tx.rsplit("/", 2)
    return OpId(client, epoch, int(number))


def is_tx(name: str) -> bool:
    parts = name.rsplit("/", 2)
    return len(parts) == 3 and parts[2].isdecimal() and len(parts[2]) <= 18 and bool(parts[0])


class Office:
    """The part of the machine that knows where everybody is."""

    def __init__(self, name: str, root: str, routing: RoutingState, sessions: Sessions) -> None:
        self.name = name
        self.root = root
        self.routing = routing
        self.sessions = sessions
        self.state = TxState()
        self.now = 0.0
        self._effects = TxEffects()

    def take_effects(self) -> TxEffects | None:
        """None if there are none, as nearly always: every fact asks."""
        effects = self._effects
        if effects.is_empty:
            return None
        self._effects = TxEffects()
        return effects

    def _neighbour_towards(self, broker: str) -> str | None:
        """The next hop to a broker; empty: it is us; None: it cannot be reached now."""
        if broker == self.name:
            return ""
        for pubend, hop in self.routing.pubends.items():
            if hop != HERE and broker_of_pubend(pubend) == broker:
                return hop.name
        return None

    def _others(self, source: str) -> list[str]:
        return [name for name in self.routing.bits.neighbours if name != source]

    def _flood(self, message: TxMessage, source: str) -> list[str]:
        others = self._others(source)
        self._effects.messages += [(neighbour, message) for neighbour in others]
        return others

    def _send(self, neighbour: str, message: TxMessage) -> None:
        """What was for one that is no neighbour any more concerns nobody."""
        if neighbour in self.routing.bits.neighbours:
            self._effects.messages.append((neighbour, message))

    def _post(self, broker: str, body: LetterBody) -> None:
        """A letter to a broker that cannot be reached is lost: deadlines see to the rest."""
        towards = self._neighbour_towards(broker)
        if towards:
            self._send(towards, Letter(broker, body))
        elif towards == "":
            self._read(body)

    def _read(self, body: LetterBody) -> None:
        raise NotImplementedError

    def _forward(self, letter: Letter, source: Hop) -> None:
        del source
        self._post(letter.broker, letter.body)

    def _home(self, tx: str) -> str:
        """The coordinator's broker."""
        return broker_of(op_of(tx).epoch)

    def _answer(self, op: OpId, reply: Done | Failed) -> None:
        self._effects.answers.append((op, reply))

    def _fail(self, op: OpId, error: str, text: str) -> None:
        self._answer(op, Failed(op.sequence, error, text))
