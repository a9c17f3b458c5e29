"""The coordinator's broker.

It sends the parts of a plan to the brokers of its clients; the root collects the results. For a
dynamic transaction it collects the contributions of all participants itself, and submits them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from motet.model import OpId
from motet.protocol.room import Objection
from motet.protocol.routing.state import RoutingState
from motet.protocol.session.messages import BeginRequest, Done, EndRequest, ExecuteRequest
from motet.protocol.transactions.courier import Courier, Outgoing, Overdue
from motet.protocol.transactions.messages import (
    Decide,
    Effective,
    Engage,
    Open,
    OtherReason,
    Reason,
    SameKey,
    Submit,
    op_of,
    parse_reason,
)
from motet.protocol.transactions.participant import Invitations, Participant, newest, too_large
from motet.protocol.transactions.state import (
    ClientPart,
    Coordination,
    CoordinatorState,
    Forbidden,
    Ignored,
    Local,
    Move,
    Moves,
)

COMMITTED, ABORTED = "committed", "aborted"
STATIC, ISOLATED, PLAIN = "static", "isolated", "open"


class CoordinatorPhase(Move):
    UNKNOWN = "unknown"
    PLANNED = "planned"
    """The root collects the parts of the plan."""
    OPEN = "open"
    ENDING = "ending"
    """The root has been asked to abort it."""
    SUBMITTED = "submitted"
    DECIDED = "decided"
    REPORTED = "reported"


class CoordinatorEvent(Move):
    BEGIN = "its beginning"
    EXECUTE = "its plan"
    OPERATION = "an operation of its coordinator"
    COMMIT = "a commit"
    ABORT = "an abort"
    TIMEOUT = "its timeout"
    EXCESS = "too much to submit"
    COMMITTED = "the decision to commit"
    ABORTED = "the decision to abort"
    EFFECT = "its effect at all affected brokers"
    SETTLE = "its effect everywhere"
    LEAVE = "the end of its coordinator's session"


ASKED_FOR = Ignored("we have missed the decision, and ask the root for it")
MOVES: Moves[CoordinatorPhase, CoordinatorEvent] = Moves(
    "transaction",
    {
        CoordinatorPhase.UNKNOWN: {
            CoordinatorEvent.BEGIN: CoordinatorPhase.OPEN,
            CoordinatorEvent.EXECUTE: CoordinatorPhase.PLANNED,
            CoordinatorEvent.COMMIT: Forbidden("TransactionOver"),
            CoordinatorEvent.ABORT: Forbidden("TransactionOver"),
            CoordinatorEvent.TIMEOUT: Ignored("it was reported"),
            CoordinatorEvent.COMMITTED: Ignored("no client of ours began it"),
            CoordinatorEvent.ABORTED: Ignored("no client of ours began it"),
            CoordinatorEvent.EFFECT: Ignored("it was reported"),
            CoordinatorEvent.SETTLE: Ignored("it was reported, or no client of ours began it"),
            CoordinatorEvent.LEAVE: Ignored("no client of ours began it"),
        },
        CoordinatorPhase.PLANNED: {
            CoordinatorEvent.COMMIT: Forbidden("TransactionOver"),
            CoordinatorEvent.ABORT: Forbidden("TransactionOver"),
            CoordinatorEvent.TIMEOUT: CoordinatorPhase.PLANNED,
            CoordinatorEvent.COMMITTED: CoordinatorPhase.DECIDED,
            CoordinatorEvent.ABORTED: CoordinatorPhase.REPORTED,
            CoordinatorEvent.EFFECT: Ignored("it is not decided here yet"),
            CoordinatorEvent.SETTLE: ASKED_FOR,
            CoordinatorEvent.LEAVE: Ignored("its parts are done without its coordinator"),
        },
        CoordinatorPhase.OPEN: {
            CoordinatorEvent.OPERATION: CoordinatorPhase.OPEN,
            CoordinatorEvent.COMMIT: CoordinatorPhase.SUBMITTED,
            CoordinatorEvent.ABORT: CoordinatorPhase.ENDING,
            CoordinatorEvent.TIMEOUT: CoordinatorPhase.OPEN,
            CoordinatorEvent.COMMITTED: CoordinatorPhase.DECIDED,
            CoordinatorEvent.ABORTED: CoordinatorPhase.REPORTED,
            CoordinatorEvent.EFFECT: Ignored("it is not decided here yet"),
            CoordinatorEvent.SETTLE: ASKED_FOR,
            CoordinatorEvent.LEAVE: CoordinatorPhase.OPEN,
        },
        CoordinatorPhase.ENDING: {
            CoordinatorEvent.OPERATION: Forbidden("TransactionOver"),
            CoordinatorEvent.COMMIT: Forbidden("TransactionOver"),
            CoordinatorEvent.ABORT: Forbidden("TransactionOver"),
            CoordinatorEvent.TIMEOUT: CoordinatorPhase.ENDING,
            CoordinatorEvent.COMMITTED: CoordinatorPhase.DECIDED,
            CoordinatorEvent.ABORTED: CoordinatorPhase.REPORTED,
            CoordinatorEvent.EFFECT: Ignored("it is not decided here yet"),
            CoordinatorEvent.SETTLE: ASKED_FOR,
            CoordinatorEvent.LEAVE: CoordinatorPhase.ENDING,
        },
        CoordinatorPhase.SUBMITTED: {
            CoordinatorEvent.OPERATION: Forbidden("TransactionOver"),
            CoordinatorEvent.COMMIT: Forbidden("TransactionOver"),
            CoordinatorEvent.ABORT: Forbidden("TransactionOver"),
            CoordinatorEvent.TIMEOUT: CoordinatorPhase.SUBMITTED,
            CoordinatorEvent.EXCESS: CoordinatorPhase.ENDING,
            CoordinatorEvent.COMMITTED: CoordinatorPhase.DECIDED,
            CoordinatorEvent.ABORTED: CoordinatorPhase.REPORTED,
            CoordinatorEvent.EFFECT: Ignored("it is not decided here yet"),
            CoordinatorEvent.SETTLE: ASKED_FOR,
            CoordinatorEvent.LEAVE: Ignored("the root decides it without its coordinator"),
        },
        CoordinatorPhase.DECIDED: {
            CoordinatorEvent.OPERATION: Forbidden("TransactionOver"),
            CoordinatorEvent.COMMIT: Forbidden("TransactionOver"),
            CoordinatorEvent.ABORT: Forbidden("TransactionOver"),
            CoordinatorEvent.TIMEOUT: CoordinatorPhase.REPORTED,
            CoordinatorEvent.COMMITTED: CoordinatorPhase.DECIDED,
            CoordinatorEvent.ABORTED: CoordinatorPhase.REPORTED,
            CoordinatorEvent.EFFECT: CoordinatorPhase.REPORTED,
            CoordinatorEvent.SETTLE: CoordinatorPhase.REPORTED,
            CoordinatorEvent.LEAVE: Ignored("it is decided"),
        },
        CoordinatorPhase.REPORTED: {},  # then it is forgotten, and so UNKNOWN
    },
)


@dataclass(eq=False)
class Coordinator:
    _courier: Courier
    _out: Outgoing
    _tables: RoutingState
    _participant: Participant
    _invitations: Invitations
    state: CoordinatorState

    def get(self, tx: str) -> Coordination | None:
        return self.state.coordinations.get(tx)

    def key(self, tx: str) -> str:
        """The idempotency key, if a local client began the transaction."""
        coordination = self.state.coordinations.get(tx)
        return coordination.key if coordination is not None else ""

    def phase(self, tx: str) -> CoordinatorPhase:
        coordination = self.state.coordinations.get(tx)
        if coordination is None:
            return CoordinatorPhase.UNKNOWN
        if coordination.outcome:
            return CoordinatorPhase.DECIDED
        if coordination.kind == STATIC:
            return CoordinatorPhase.PLANNED
        if coordination.submitted:
            return CoordinatorPhase.SUBMITTED
        return CoordinatorPhase.ENDING if coordination.request else CoordinatorPhase.OPEN

    def is_not_offered(self, op: OpId) -> bool:
        """Whether transactions are unavailable here, or at present; if so, fails the request."""
        root, name = self._courier.root, self._courier.name
        if root and self._courier.towards(root) is not None and self._tables.hosted:
            return False
        text = f"{name} offers no transactions: "
        if not self._tables.hosted:
            text += "it does not deliver exactly once"
        elif not root:
            text += "its overlay has no root; name one in the topology, unless the overlay has"
            text += " cells or covering, which exclude transactions"
        else:
            # Only from journals of releases in which requests did not wait for a route.
            text += f"it has no way to the root {root} now"
        self._out.fail(op, "NotOffered", text)
        return True

    # ── requests of the coordinator ──────────────────────────────────────────────────────

    def begin(self, op: OpId, request: BeginRequest) -> None:
        if self.is_not_offered(op):
            return
        tx = str(op)
        MOVES.next(self.phase(tx), CoordinatorEvent.BEGIN, tx)
        kind = ISOLATED if request.isolated else PLAIN
        self.state.coordinations[tx] = Coordination(tx, kind, request.key)
        self._participant.open(tx, request.timeout_s).parts[op.client] = ClientPart(op.epoch)
        if request.isolated:
            self._courier.post(self._courier.root, Open(tx, request.timeout_s))
        else:
            self._out.answer(op, Done(op.sequence, tx))

    def execute(self, op: OpId, request: ExecuteRequest) -> None:
        if self.is_not_offered(op):
            return
        clients = self._tables.clients
        cast = tuple(dict.fromkeys(name for name, _ in request.parts))
        unknown = [name for name in cast if clients.newest(name) is None]
        if unknown or not cast:
            who = ", ".join(unknown) or "no client"
            text = f"the plan names {who}, but no such client is connected to the overlay"
            self._out.fail(op, "UnknownClient", text)
            return
        tx = str(op)
        MOVES.next(self.phase(tx), CoordinatorEvent.EXECUTE, tx)
        self.state.coordinations[tx] = Coordination(tx, STATIC, request.key, op.sequence)
        self._participant.open(tx, request.timeout_s)
        for client, steps in request.parts:
            letter = Engage(tx, client, steps, request.timeout_s, cast, request.key)
            self._courier.follow(letter)

    def coordinates(self, op: OpId, tx: str) -> bool:
        """Does this session coordinate this dynamic transaction?"""
        coordination = self.state.coordinations.get(tx)
        return coordination is not None and op_of(tx)[:2] == op[:2] and coordination.kind != STATIC

    def objection(self, tx: str) -> Objection | None:
        """Why the coordinator may not do anything more in it."""
        return self._refusal(tx, CoordinatorEvent.OPERATION)

    def _refusal(self, tx: str, event: CoordinatorEvent) -> Objection | None:
        error = MOVES.refusal(self.phase(tx), event, tx)
        return Objection(error, f"transaction {tx} is already ending") if error else None

    def end(self, op: OpId, request: EndRequest) -> None:
        """Commit or abort a transaction that a local client began."""
        tx = request.tx
        coordination = self.state.coordinations.get(tx)
        local = self._participant.get(tx)
        if coordination is None or local is None or op_of(tx)[:2] != op[:2]:
            text = f"transaction {tx} is over, or was not begun by {op.client}"
            self._out.fail(op, "TransactionOver", text)
            return
        reason = self._abort_reason(op, request, local)
        event = CoordinatorEvent.COMMIT if reason is None else CoordinatorEvent.ABORT
        problem = self._refusal(tx, event)
        if problem is not None:
            self._out.fail(op, *problem)
            return
        MOVES.next(self.phase(tx), event, tx)
        coordination.request = op.sequence
        if reason is not None:
            self.give_up(local, reason)
        else:
            self._submit(coordination, local)

    def _abort_reason(self, op: OpId, request: EndRequest, local: Local) -> Reason | None:
        """Why the transaction must be aborted instead of committed; None if it can be committed."""
        if not request.commit:
            return OtherReason(request.reason or "aborted by its coordinator")
        part = local.parts.get(op.client)
        if (part is not None and part.pending) or self._invitations.missing(local):
            return OtherReason("its commit was requested before all its operations were effective")
        if local.refused:
            return OtherReason(f"one of its invitations was refused: {local.refused}")
        return None

    def give_up(self, local: Local, reason: Reason) -> None:
        self._participant.give_up(local, reason, self.key(local.tx))

    def has_lost(self, tx: str, client: str, epoch: str) -> bool:
        """Whether a transaction cannot continue without this session, which has ended."""
        if op_of(tx)[:2] != (client, epoch):
            return False
        return MOVES.next(self.phase(tx), CoordinatorEvent.LEAVE, tx) is not None

    # ── the root ─────────────────────────────────────────────────────────────────────────

    def _submit(self, coordination: Coordination, local: Local) -> None:
        tx = coordination.tx
        coordination.submitted = True
        known = dict(local.gathered)
        newest(known, self._participant.contribution(local, op_of(tx).client))
        large = too_large(known.values())
        if large:
            MOVES.next(CoordinatorPhase.SUBMITTED, CoordinatorEvent.EXCESS, tx)
            coordination.submitted = False
            self.give_up(local, OtherReason(large))
            return
        isolated = coordination.kind == ISOLATED
        told = Submit(tx, tuple(known.values()), coordination.key, isolated)
        self._courier.post(self._courier.root, told)

    def submit_again(self, local: Local) -> bool:
        """The root has not decided a submission: submit again, since the letter may be lost."""
        coordination = self.state.coordinations.get(local.tx)
        if coordination is None or not coordination.submitted:
            return False
        self._submit(coordination, local)
        return True

    def decided(self, decide: Decide, timeout_s: float) -> None:
        """A commit must be in effect at all concerned brokers within the timeout."""
        tx = decide.tx
        coordination = self.state.coordinations.get(tx)
        event = CoordinatorEvent.COMMITTED if decide.committed else CoordinatorEvent.ABORTED
        after = MOVES.next(self.phase(tx), event, tx)
        if after is None or coordination is None:
            return
        coordination.outcome = COMMITTED if decide.committed else ABORTED
        coordination.reason = decide.reason
        if after is CoordinatorPhase.REPORTED:
            self._report(coordination)
        else:
            self._out.set_timer(Overdue(tx), self._out.now + timeout_s)

    def effective(self, letter: Effective) -> None:
        self._conclude(letter.tx, CoordinatorEvent.EFFECT)

    def settled(self, tx: str) -> None:
        self._conclude(tx, CoordinatorEvent.SETTLE)

    def still_spreading(self, tx: str, away: Iterable[str]) -> None:
        """The transaction is committed, but a broker that it concerns is away for too long."""
        coordination = self.state.coordinations.get(tx)
        if (
            MOVES.next(self.phase(tx), CoordinatorEvent.TIMEOUT, tx)
            is not CoordinatorPhase.REPORTED
        ):
            return
        assert coordination is not None
        op = self._forget(coordination)
        late = ", ".join(away)
        who = f"{late}, or a broker behind it," if late else "an affected broker"
        text = f"transaction {tx} is committed, but {who} is unreachable"
        self._out.fail(op, "StillSpreading", f"{text}; it takes effect there later")

    def _conclude(self, tx: str, event: CoordinatorEvent) -> None:
        coordination = self.state.coordinations.get(tx)
        if MOVES.next(self.phase(tx), event, tx) is not None and coordination is not None:
            self._report(coordination)

    def _report(self, coordination: Coordination) -> None:
        """Answer the coordinator's request with the outcome."""
        op = self._forget(coordination)
        reason = parse_reason(coordination.reason)
        if coordination.outcome == COMMITTED:
            self._out.answer(op, Done(op.sequence, coordination.tx))
        elif isinstance(reason, SameKey):
            self._out.answer(op, Done(op.sequence, reason.tx))
        else:
            self._out.fail(op, "Aborted", reason.text)

    def _forget(self, coordination: Coordination) -> OpId:
        """Returns the request to be answered."""
        del self.state.coordinations[coordination.tx]
        self._out.cancel_timer(Overdue(coordination.tx))
        client, epoch, begin = op_of(coordination.tx)
        return OpId(client, epoch, coordination.request or begin)
