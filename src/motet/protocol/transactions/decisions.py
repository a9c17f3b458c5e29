"""How decisions spread to all brokers, take effect and settle.

A decision floods from the root and takes effect at each broker that it reaches. A pubend that it
touches cuts. A broker echoes the decision when it and all brokers behind it are done. It reports
earlier, and separately, that all brokers *concerned* are done, because the coordinator waits only
for these. When all brokers have echoed, the root floods `Settle`, and all forget the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from motet.model import Hop, OpId
from motet.protocol.routing.messages import Advertise, Confirmed, RoutingMessage, Subscribe
from motet.protocol.routing.state import RoutingState
from motet.protocol.transactions.coordinator import Coordinator
from motet.protocol.transactions.courier import Courier, Outgoing, Overdue
from motet.protocol.transactions.cutter import Cutter, TxTables
from motet.protocol.transactions.messages import (
    Begun,
    Decide,
    Echoed,
    Effective,
    Ended,
    Engage,
    Query,
    Settle,
    Verdict,
)
from motet.protocol.transactions.participant import GRACE_S, Invitations, Participant, over_text
from motet.protocol.transactions.state import (
    Decision,
    DecisionState,
    Held,
    Ignored,
    Local,
    Move,
    Moves,
)

DECIDE, EFFECTIVE = "decide", "effective"
"""The values of `Echoed.what` for a decision."""


class DecisionPhase(Move):
    UNKNOWN = "unknown"
    SPREADING = "spreading"
    REPORTED = "in effect at all affected brokers behind us"
    ECHOED = "in effect everywhere behind us"
    SETTLED = "settled"


class DecisionEvent(Move):
    TOLD = "the decision"
    EFFECT = "its effect at all affected brokers behind us"
    COMPLETE = "its effect everywhere behind us"
    SETTLE = "its effect everywhere"


MOVES: Moves[DecisionPhase, DecisionEvent] = Moves(
    "the decision on",
    {
        DecisionPhase.UNKNOWN: {
            DecisionEvent.TOLD: DecisionPhase.SPREADING,
            DecisionEvent.SETTLE: Ignored("the root is asked, if we wait for a decision"),
        },
        DecisionPhase.SPREADING: {
            # Sent again because a link has restarted: the echoes are sent again, too.
            DecisionEvent.TOLD: DecisionPhase.SPREADING,
            DecisionEvent.EFFECT: DecisionPhase.REPORTED,
            DecisionEvent.COMPLETE: DecisionPhase.ECHOED,
            DecisionEvent.SETTLE: DecisionPhase.SETTLED,
        },
        DecisionPhase.REPORTED: {
            DecisionEvent.TOLD: DecisionPhase.SPREADING,
            DecisionEvent.EFFECT: Ignored("it was already reported"),
            DecisionEvent.COMPLETE: DecisionPhase.ECHOED,
            DecisionEvent.SETTLE: DecisionPhase.SETTLED,
        },
        DecisionPhase.ECHOED: {
            DecisionEvent.TOLD: DecisionPhase.SPREADING,
            DecisionEvent.EFFECT: Ignored("more was already reported"),
            DecisionEvent.COMPLETE: Ignored("it was already reported"),
            DecisionEvent.SETTLE: DecisionPhase.SETTLED,
        },
        DecisionPhase.SETTLED: {},  # then it is forgotten, and so UNKNOWN
    },
)


@dataclass(eq=False)
class Decisions:
    _courier: Courier
    _out: Outgoing
    _tables: RoutingState
    _versions: TxTables
    _participant: Participant
    _invitations: Invitations
    _coordinator: Coordinator
    _cutter: Cutter
    state: DecisionState = field(default_factory=DecisionState, init=False)
    on_settled: Callable[[str], None] | None = field(default=None, init=False)
    """At the root: called with each transaction whose decision is about to be forgotten."""

    def is_active(self, tx: str) -> bool:
        return tx in self.state.active

    def phase(self, tx: str) -> DecisionPhase:
        known = self.state.active.get(tx)
        if known is None:
            return DecisionPhase.UNKNOWN
        if known.echoed:
            return DecisionPhase.ECHOED
        return DecisionPhase.REPORTED if known.reported else DecisionPhase.SPREADING

    def next_number(self) -> int:
        return self.state.number + 1

    def concerned(self, tx: str) -> list[str]:
        """Neighbours behind which a concerned broker has not finished."""
        known = self.state.active.get(tx)
        return list(known.concerned) if known is not None else []

    def unsettled(self, upto: int) -> int:
        """The number of the last decision up to this one that is not in effect everywhere, as far
        as we know; 0 if there is none."""
        numbers = (known.decide.number for known in self.state.active.values())
        return max((number for number in numbers if number <= upto), default=0)

    # ── told ─────────────────────────────────────────────────────────────────────────────

    def decide(self, message: Decide, source: str) -> None:
        """A decision from a neighbour, or, if `source` is empty, of this broker as the root."""
        tx = message.tx
        MOVES.next(self.phase(tx), DecisionEvent.TOLD, tx)
        known = self.state.active.get(tx)
        if known is not None:
            known.source, known.echoed, known.reported = source, False, False
            self._progress(known)
            return
        self.state.number = max(self.state.number, message.number)
        self.state.heard = max(self.state.heard, message.number)
        others = self._courier.flood(message, source)
        decision = Decision(message, source, dict.fromkeys(others))
        concerned = self._concerned(message) if others or source else set()
        decision.concerned = {name: None for name in others if name in concerned}
        # No report is due to `source` if the decision concerns no broker here or behind us.
        here = self._courier.name in concerned or not source
        self.state.active[tx] = decision
        if not message.committed or not (here or decision.concerned):
            MOVES.next(self.phase(tx), DecisionEvent.EFFECT, tx)
            decision.reported = True
        self._conclude(message)
        if message.committed:
            self._cutter.touch(message)
        self._progress(decision)

    def _concerned(self, message: Decide) -> set[str]:
        """Neighbours behind which a client takes part or advertises what the decision begins or
        ends; and this broker, if one of its clients does."""
        name = self._courier.name
        found: set[str] = set()
        for broker in message.brokers:
            towards = self._courier.towards(broker)
            anywhere = towards is None
            found.update(self._courier.others("") if anywhere else [towards or name])
        bits, advertised = self._tables.bits, self._tables.advertisements.overlapping_hops
        mask = 0
        changes: list[Begun | Ended] = [*message.begun, *message.ended]
        for each in changes:
            mask |= advertised(each.filter)
        found.update(bits.names(mask & bits.all_neighbours))
        if mask & ~bits.all_neighbours:
            found.add(name)
        return found

    def witnesses(self, tx: str) -> list[str]:
        """Neighbours behind which a client takes part, or has begun the transaction."""
        brokers = self.state.active[tx].decide.brokers
        towards = {self._courier.towards(broker) for broker in brokers}
        towards.add(self._courier.towards_coordinator(tx))
        return [each for each in self._courier.others("") if None in towards or each in towards]

    def _conclude(self, message: Decide) -> None:
        """Put the decision into effect here, except for our cut."""
        tx = message.tx
        if message.committed:
            self._versions.take_effect(message)
        self._versions.forget(tx)
        self._courier.decided(tx)
        local = self._participant.get(tx)
        if local is not None:
            self._participant.conclude(local, message)
            if message.committed:
                staged = {c: part.staged for c, part in local.parts.items() if part.staged}
                self._cutter.stage(tx, staged)
            self.state.held = [each for each in self.state.held if not _is_plan(each, tx)]
        self._invitations.conclude(tx, over_text(message) if local is not None else "")
        if local is not None:
            self._out.cancel_timer(Overdue(tx))
            self._out.effects.moved_on = True
        self._coordinator.decided(message, local.timeout_s if local is not None else GRACE_S)

    # ── effective ────────────────────────────────────────────────────────────────────────

    def echoed(self, message: Echoed, neighbour: str) -> None:
        known = self.state.active.get(message.tx)
        if known is not None:
            known.concerned.pop(neighbour, None)
            if message.what == DECIDE:
                known.missing.pop(neighbour, None)
            self._progress(known)

    def _progress(self, known: Decision) -> None:
        """Echo the decision to its sender once it is effective here and behind us. If all concerned
        brokers are done before the others, report that first."""
        tx = known.decide.tx
        if self._cutter.must_cut(tx):
            return
        if not known.missing:
            if MOVES.next(self.phase(tx), DecisionEvent.COMPLETE, tx) is not None:
                self._complete(known)
        elif (
            not known.concerned and MOVES.next(self.phase(tx), DecisionEvent.EFFECT, tx) is not None
        ):
            known.reported = True
            if known.source:
                self._courier.send(known.source, Echoed(tx, EFFECTIVE))
            elif self._courier.is_root and not known.late:
                self._courier.follow(Effective(tx))

    def _complete(self, known: Decision) -> None:
        tx = known.decide.tx
        known.echoed = known.reported = True
        if known.source:
            self._courier.send(known.source, Echoed(tx, DECIDE))
        elif known.late:
            self._settled(tx)
        elif self._courier.is_root:
            self._courier.flood(Settle(tx), "")
            self._settled(tx)

    def cut_told(self, tx: str) -> None:
        """The starts and ends of the cut have been sent: now echo the decision. In this order, a
        broker that has heard of all cuts also knows their starts and ends."""
        known = self.state.active.get(tx)
        if known is not None:
            self._progress(known)
            if known.settled:
                self._settled(tx)

    # ── settled ──────────────────────────────────────────────────────────────────────────

    def settle(self, message: Settle, source: Hop) -> None:
        self._courier.flood(message, source.name)
        self._settled(message.tx)
        if self._versions.is_open(message.tx) or self._participant.get(message.tx) is not None:
            self.query(message.tx)

    def query(self, tx: str) -> None:
        self._courier.post(self._courier.root, Query(tx, self._courier.name))

    def _settled(self, tx: str) -> None:
        """The decision is in effect everywhere; but if we were not waited for, our own cut may be
        missing, and it is not effective here before. What it begins may have ended elsewhere
        meanwhile, and never arrive: see `Cutter.due`."""
        known = self.state.active.get(tx)
        if known is not None and self._cutter.must_cut(tx):
            self._out.effects.doubts |= self._cutter.hurry(tx)
            known.settled = True
            return
        if MOVES.next(self.phase(tx), DecisionEvent.SETTLE, tx) is not None:
            if self.on_settled is not None:
                self.on_settled(tx)
            del self.state.active[tx]
        self._release(tx)
        if known is not None and known.decide.committed:
            changed: list[Begun | Ended] = [*known.decide.begun, *known.decide.ended]
            self._out.effects.settled += [each.op for each in changed]
            self._versions.settle(known.decide)
        self._coordinator.settled(tx)

    def verdict(self, letter: Verdict) -> None:
        """The transaction was decided and settled while we were away."""
        tx = letter.tx
        self._invitations.refuse(tx)
        # Brokers behind us may have missed the decision, too: then they query it themselves.
        self._courier.flood(Settle(tx), self._courier.towards(self._courier.root) or "")
        local = self._participant.get(tx)
        if letter.committed and local is not None and not self.is_active(tx):
            self._obey_late(local, letter)
            return
        if not self.is_active(tx):
            self._conclude(Decide(tx, letter.number, letter.committed, letter.reason))
        self._participant.forget(tx)
        self._settled(tx)

    def _obey_late(self, local: Local, letter: Verdict) -> None:
        """Local clients took part in a committed transaction: what they did takes effect now."""
        parts = [self._participant.contribution(local, client) for client in local.parts]
        begun = tuple(each for part in parts for each in part.begun)
        ended = tuple(each for part in parts for each in part.ended)
        pubends = tuple(dict.fromkeys(part.pubend for part in parts if part.pubend))
        decide = Decide(local.tx, letter.number, True, letter.reason, begun, ended, pubends)
        added = [
            (Confirmed(OpId(client, part.epoch, number)), Hop.client(client))
            for client, part in local.parts.items()
            for number in (*part.begun, *part.advertised)
        ]
        MOVES.next(self.phase(local.tx), DecisionEvent.TOLD, local.tx)
        decision = self.state.active[local.tx] = Decision(decide, "", late=True)
        self._conclude(decide)
        self._out.effects.routes += added
        self._cutter.touch(decide)
        self._progress(decision)

    # ── requests that wait until a decision is settled ───────────────────────────────────

    def beginning(self, ops: Iterable[OpId]) -> str:
        """The decided but unsettled transaction that begins one of these."""
        if not self.state.active:
            return ""
        wanted = set(ops)
        for tx, known in self.state.active.items():
            if any(begun.op in wanted for begun in known.decide.begun):
                return tx
        return ""

    def hold(self, held: Held) -> None:
        self.state.held.append(held)

    def _release(self, tx: str) -> None:
        if self.state.held:
            released = [each for each in self.state.held if each.tx == tx]
            # What has ended for its client is removed before a transaction can claim it.
            released.sort(key=lambda each: each.forsaken is None)
            for each in released:
                self._versions.release(each)
            self._out.effects.released += released
            self.state.held = [each for each in self.state.held if each.tx != tx]

    def drop_held(self, client: str, epoch: str) -> list[Engage]:
        """The session has ended: drop its held requests, except removals of forsaken subscriptions.
        Returns its parts of plans that waited."""
        gone = [each for each in self.state.held if each.op[:2] == (client, epoch)]
        self.state.held = [h for h in self.state.held if h not in gone or h.forsaken]
        return [each.request for each in gone if isinstance(each.request, Engage)]

    # ── neighbours ───────────────────────────────────────────────────────────────────────

    def dismiss(self, neighbour: str) -> None:
        """The broker is not a neighbour any more, so no decision waits for it."""
        for known in list(self.state.active.values()):
            known.missing.pop(neighbour, None)
            known.concerned.pop(neighbour, None)
            self._progress(known)

    def tell_again(self, neighbour: str) -> None:
        """A link restarts from scratch. The root may have lost its decisions, and is sent them."""
        for known in self.state.active.values():
            if neighbour == self._courier.root and not known.late:
                self._courier.send(neighbour, known.decide)
            elif known.source != neighbour and not known.late:
                known.missing[neighbour] = None
                known.concerned[neighbour] = None
                self._courier.send(neighbour, known.decide)

    def awaited(self) -> list[str]:
        """Transactions whose decision or settling we await from the root, without another timer
        here."""
        if self._courier.is_root:
            return []
        told = [tx for tx, known in self.state.active.items() if known.source]
        reading = [tx for tx in self._versions.state.bases if self._participant.get(tx) is None]
        return told + reading

    def ask_later(self) -> None:
        """A link was replaced, and what we wait for may have been lost with it."""
        for tx in self.awaited():
            self._out.set_timer(Overdue(tx), self._out.now + GRACE_S)

    def overdue(self, tx: str) -> None:
        if tx in self.awaited():
            self.query(tx)
            self._out.set_timer(Overdue(tx), self._out.now + GRACE_S)

    def normalised(self, message: RoutingMessage) -> RoutingMessage:
        """A message, corrected if its sender did not yet know a decision that we know."""
        if not self.state.active or not isinstance(message, (Advertise, Subscribe)):
            return message
        known = self.state.active.get(message.tx) if message.tx else None
        if known is not None and known.decide.committed:
            message = replace(message, tx="")
        if isinstance(message, Subscribe) and not message.ended:
            for each in self.state.active.values():
                if any(ended.op == message.id for ended in each.decide.ended):
                    return replace(message, ended=True)
        return message

    def ending(self) -> set[OpId]:
        """Subscriptions that end with an unsettled decision."""
        return {each.op for known in self.state.active.values() for each in known.decide.ended}


def _is_plan(held: Held, tx: str) -> bool:
    return isinstance(held.request, Engage) and held.request.tx == tx
