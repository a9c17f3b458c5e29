"""What follows from a change of durable state: outboxes, answers, deadlines, consequences.

The tables and machines say what is to be done; here it is done, in the order that they ask for.
Facts come in at `durable`, and only while one is applied does anything here change.
"""

from __future__ import annotations

from motet.broker.config import BrokerConfig
from motet.broker.consequences import Consequences
from motet.model import Hop, OpId
from motet.protocol.contract import CancelTimer, TimerKey
from motet.protocol.link.machine import Ledger
from motet.protocol.link.messages import ControlMessage
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import RoutingMessage, Started, widens
from motet.protocol.routing.obligations import Effects
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    CommitRequest,
    Decided,
    Done,
    Failed,
    Invited,
    Over,
    Request,
)
from motet.protocol.sinks.machine import Sinks
from motet.protocol.transactions.machine import Transactions
from motet.protocol.transactions.messages import Engage, TxMessage

NOWHERE = 1 << 62
"""Above every tick: a subscription does not reach back there any more."""


class Carrying:
    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        life = f"{config.name}-{config.incarnation}"
        self.routing = Routing(life, config.neighbours, covering=config.covering)
        self.sessions = Sessions(config.name, config.incarnation)
        self.lives = config.incarnation
        """The highest life that any of our links has had: none returns, not even for a neighbour
        that was taken away and added again."""
        self.ledgers = {name: Ledger(name, self.lives) for name in sorted(config.neighbours)}
        root = "" if config.cells or config.mates or config.covering else config.root
        self.transactions = Transactions(config.name, root, self.routing.state, self.sessions)
        # No number returns, not even if the root loses its state.
        self.transactions.state.number = config.incarnation
        self.sinks = Sinks()
        self.floors: dict[str, int] = {}
        """By pubend: all clients of ours are done with it up to here."""
        self.reserved = 0
        """Our own events come above this after a restart."""
        self.destroyed = (0, 0)
        """Our log up to this tick is gone; the last epoch that we had issued then."""
        self.deadlines: dict[OpId, tuple[float, float]] = {}
        """Of every request that someone waits for: when, and the timeout that was asked for."""
        self.now = 0.0
        self._then = Consequences()

    def _route(self, message: ControlMessage, source: Hop) -> None:
        if isinstance(message, TxMessage):
            self.transactions.receive(message, source)
            self._carry_transactions()
        else:
            self._change(message, source)

    def _change(self, message: RoutingMessage, source: Hop) -> None:
        known = self.transactions.normalised(message)
        self._carry(self.routing.apply(known, source))

    def _carry(self, effects: Effects) -> None:
        for neighbour, message in effects.messages:
            self.ledgers[neighbour].enqueue(message, widens=widens(message))
            self._then.neighbours[neighbour] = None
        self._then.take(effects)
        self._lift(effects.lifted)
        for pubend in effects.destroyed:
            self.floors.pop(pubend, None)
        for op, withdrawn in effects.completed:
            if withdrawn:
                text = f"operation {op.sequence} was taken back before it was effective"
                self._answer(op, Failed(op.sequence, "Withdrawn", text))
            elif self.transactions.postpone(op):
                self._forget_deadline(op)  # all that was asked of others is done
            else:
                self._answer(op, Done(op.sequence))

    def _lift(self, lifted: list[Started]) -> None:
        """Where subscriptions are owed nothing any more, the past is over for them as well."""
        for each in lifted:
            session = self.sessions.current(each.op.client, each.op.epoch)
            since = session.since.get(each.op.sequence) if session is not None else None
            if session is not None and since is not None:
                session.since[each.op.sequence] = {**since, each.pubend: NOWHERE}

    def _answer(self, op: OpId, reply: Done | Failed) -> None:
        self._forget_deadline(op)
        session = self.sessions.current(op.client, op.epoch)
        if session is not None and self.sessions.answer(session, reply):
            self._then.answers.append((op.client, reply))
        self.transactions.effective(op, failed=isinstance(reply, Failed))

    def _tell(self, client: str, told: Invited | Decided | Over) -> None:
        session = self.sessions.get(client)
        if session is not None and not isinstance(told, Invited):  # that stays until answered
            session.hear(told)
        self._then.tell.append((client, told))

    def _forget_deadline(self, op: OpId) -> None:
        if self.deadlines.pop(op, None) is not None:
            self._cancel(deadline_key(op))

    def _cancel(self, key: TimerKey) -> None:
        self._then.timers.append(CancelTimer(key))

    def _carry_transactions(self) -> None:
        """What transactions want goes out before what follows from it in the tables."""
        while True:
            effects = self.transactions.take_effects()
            if effects is None:
                return
            for neighbour, message in effects.messages:
                self.ledgers[neighbour].enqueue(message)
                self._then.neighbours[neighbour] = None
            for op, kind, name in effects.made:
                self._name_made(op, kind, name)
            for change, source in effects.routes:
                self._change(change, source)
            if effects.doubts:
                self._carry(self.routing.reassure())
            for tx, client in effects.followed:
                self.transactions.followed(tx, client)
            for letter in effects.refused:
                self.transactions.refused(letter)
            for op, reply in effects.answers:
                self._answer(op, reply)
            for client, told in effects.tell:
                self._tell(client, told)
            then = self._then
            if effects.timers:
                then.timers += effects.timers
            if effects.blocks:
                then.blocks += effects.blocks
            if effects.ending:
                then.ending += effects.ending
            if effects.settled:
                then.settled += effects.settled
            then.released = then.released or effects.moved_on
            for op in effects.settled:
                self.routing.settle(op)
            for held in effects.released:
                if isinstance(held.request, Engage):
                    self.transactions.engage(held.request)
                else:
                    self._obey(held.op, held.request)

    def _obey(self, op: OpId, request: Request) -> None:
        """A request of a client of ours takes effect."""
        raise NotImplementedError

    def _name_made(self, op: OpId, kind: str, name: str) -> None:
        """Remember what a client calls what a plan adds."""
        session = self.sessions.current(op.client, op.epoch)
        if session is not None:
            session.advertised = session.advertised or kind == "advertise"
            self.sessions.name(session, op.sequence, name)

    def _tick(self, tick: int) -> None:
        state = self.routing.state
        state.next_tick = max(state.next_tick, tick)

    def _commit(
        self, op: OpId, request: CommitRequest, tick: int, refused: tuple[str, str]
    ) -> None:
        """Of a sink: what is staged is published from now on, whatever happens."""
        wrong = refused if refused[0] else self.sinks.objection(op.client, request)
        if wrong is not None:
            self._answer(op, Failed(op.sequence, *wrong))
            return
        block = self.sinks.commit(op, request, self.routing.state.hosted, tick)
        if block is not None:
            self._tick(block.last_tick + 1)
            self.transactions.state.published[op.client] = block.last_tick
            self._then.staged.append(block)
        tx = request.tx(op.client)
        if not self.sinks.wait(op, tx):
            self._answer(op, Done(op.sequence, tx))


def deadline_key(op: OpId) -> TimerKey:
    return ("deadline", *op)
