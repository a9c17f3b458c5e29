"""The transaction machine of one broker, composed of its parts: the facade for other rooms.

    local clients:    request, left, open_invitations
    tables:           admit, note, normalised, postpone, effective
    neighbours:       receive, forget, join, dismiss
    pubend:           staging
    time:             overdue, recover
    effects:          out
    snapshots:        image, restore, remember

State changes only while a journaled fact is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import asdict

from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.protocol.contract import SetTimer
from motet.protocol.room import Objection
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import RoutingMessage
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    AdvertiseRequest,
    AnswerRequest,
    BeginRequest,
    ConsentRequest,
    Done,
    EndRequest,
    ExecuteRequest,
    Invited,
    InviteRequest,
    OutcomeRequest,
    RoutingRequest,
    StageRequest,
    SubscribeRequest,
    Tag,
    TxRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.protocol.session.state import Session
from motet.protocol.transactions import decisions, messages
from motet.protocol.transactions.coordinator import Coordinator
from motet.protocol.transactions.courier import (
    Abandoned,
    Clock,
    Courier,
    Outgoing,
    Overdue,
    TxTimer,
    Unanswered,
    parse_timer,
    timer_key,
)
from motet.protocol.transactions.cutter import Cutter, TxTables
from motet.protocol.transactions.decisions import Decisions
from motet.protocol.transactions.messages import (
    MOST_OPERATIONS,
    Invite,
    OtherReason,
    TimeoutReason,
    TxMessage,
    op_of,
)
from motet.protocol.transactions.participant import (
    GRACE_S,
    MOST_BYTES,
    PART_MOVES,
    Invitations,
    PartEvent,
    Participant,
    PartPhase,
    Problem,
    TagRequest,
    attributes_of,
    size_of,
)
from motet.protocol.transactions.plans import Plans
from motet.protocol.transactions.root import Root, RootRequests
from motet.protocol.transactions.state import (
    Active,
    ClientPart,
    CoordinatorState,
    Decision,
    Held,
    Local,
    Marks,
    Touched,
    TxOutcome,
    TxState,
)


class Transactions:
    def __init__(
        self,
        name: str,
        root: str,
        routing: Routing,
        marks: Marks,
        sessions: Sessions,
        clock: Clock,
    ) -> None:
        """Each part knows only parts above it in this list."""
        self.root = root
        tables = routing.state
        self.out = out = Outgoing(clock)
        coordinations = CoordinatorState()
        self.courier = courier = Courier(name, root, tables, out)
        self.versions = versions = TxTables(
            courier, tables, routing.starts, routing.joins.merging, marks
        )
        self.participant = participant = Participant(
            courier, out, tables, versions, sessions, coordinations.coordinations
        )
        self.invitations = invitations = Invitations(courier, out, tables, versions, participant)
        self.coordinator = coordinator = Coordinator(
            courier, out, tables, participant, invitations, coordinations
        )
        self.cutter = cutter = Cutter(out, tables, versions)
        self.decisions = decided = Decisions(
            *(courier, out, tables, versions),
            *(participant, invitations, coordinator, cutter),
        )
        self.decider = Root(courier, out, versions, participant, decided)
        self.plans = Plans(courier, out, tables, versions, sessions, participant, decided)
        self.root_requests = RootRequests(
            courier, out, tables, participant, coordinator, self.decider
        )
        self.open: Mapping[str, Local] = participant.state.locals
        """Transactions in which local clients take part."""
        self.touched: Mapping[str, Touched] = cutter.state.touched
        """Decisions for which our pubend has to cut."""
        self.active: Mapping[str, Decision] = decided.state.active
        """Decisions that are not in effect everywhere."""
        self.requests = self._readers_of_requests()
        self._messages = self._readers_of_messages()
        courier.deliver_to(self._readers_of_letters())

    def _readers_of_requests(self) -> Mapping[type, Callable[[OpId, Any], None]]:
        return {
            BeginRequest: self.coordinator.begin,
            ExecuteRequest: self.coordinator.execute,
            StageRequest: self._stage,
            InviteRequest: self._invite,
            AnswerRequest: self.invitations.answer,
            ConsentRequest: self.plans.consent,
            EndRequest: self.coordinator.end,
            OutcomeRequest: self.root_requests.ask,
        }

    def _readers_of_messages(self) -> Mapping[type, Callable[[Any, Hop], None]]:
        return {
            messages.Letter: self.courier.forward,
            messages.Invite: self.invitations.invited,
            messages.Reply: self.invitations.replied,
            messages.Opening: self._opened,
            messages.Prepare: self._prepared,
            messages.Decide: self.decider.decided,
            messages.Echoed: self._echoed,
            messages.Settle: self.decisions.settle,
        }

    def _readers_of_letters(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            messages.Engage: self.plans.engage,
            messages.Engaged: self.decider.engaged,
            messages.Open: self.decider.open,
            messages.Submit: self.decider.submitted,
            messages.Withdraw: self.decider.withdrawn,
            messages.Query: self.decider.queried,
            messages.Verdict: self.decisions.verdict,
            messages.Ask: self.root_requests.asked,
            messages.Tell: self.root_requests.told,
            messages.Effective: self.coordinator.effective,
        }

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def request(self, op: OpId, request: TxRequest, *, patient: bool = True) -> None:
        """A `patient` request waits if there is no route to the root now."""
        if not patient or not self.root_requests.hold(op, request):
            self.requests[type(request)](op, request)

    def left(self, client: str, epoch: str) -> None:
        """A local session has ended: transactions that need it are given up."""
        reason = f"the session of {client} has ended"
        for local in list(self.participant.state.locals.values()):
            invited = [e for e in local.invitations if (e.client, e.epoch) == (client, epoch)]
            if (
                invited
                or self.participant.has_worked(local, client, epoch)
                or self.coordinator.has_lost(local.tx, client, epoch)
            ):
                self.coordinator.give_up(local, OtherReason(reason))
            for each in invited:
                self.invitations.leave(local, each, reason)
        self.invitations.left(client, epoch)
        self.root_requests.left(client, epoch)
        for letter in self.decisions.drop_held(client, epoch):
            self.plans.refuse(letter, reason)

    def open_invitations(self, client: str, epoch: str) -> list[Invited]:
        """For a client that reconnects: the invitations that it has not answered."""
        return self.participant.open_invitations(client, epoch)

    # ── operations on the tables ─────────────────────────────────────────────────────────

    def admit(self, op: OpId, request: RoutingRequest, session: Session) -> Objection | bool:
        """The objection of transactions to a request, if any; else whether it may take effect now.
        If it may not, it is kept until it may."""
        return self._objection(op, request, session) or not self._hold(op, request)

    def _objection(self, op: OpId, request: RoutingRequest, session: Session) -> Problem:
        if request.tag is not None:
            problem = self._stranger(op, request.tag, request)
            if isinstance(request, SubscribeRequest | UnsubscribeRequest):
                problem = problem or self.participant.unordered(op.client)
            if problem is not None:
                return problem
        if isinstance(request, AdvertiseRequest | SubscribeRequest):
            return self.plans.name_taken(session, request) if session.granted else None
        tx = request.tag.tx if request.tag is not None else ""
        return self.participant.held(OpId(op.client, op.epoch, request.target), tx)

    def _hold(self, op: OpId, request: RoutingRequest) -> bool:
        """Hold a request that removes a subscription which begins with an unsettled transaction: a
        pubend may still wait for that subscription. Returns whether it is held."""
        if not isinstance(request, UnadvertiseRequest | UnsubscribeRequest):
            return False
        tx = self.decisions.beginning((OpId(op.client, op.epoch, request.target),))
        if not tx:
            return False
        self.decisions.hold(Held(tx, op, request))
        if request.tag is not None:
            self.participant.wait(op, request.tag.tx)
        return True

    def note(self, op: OpId, request: RoutingRequest, tag: Tag) -> bool:
        """A local client's operation is part of a transaction. True: routing must install it, and
        report when it is effective."""
        return self.participant.note(op, request, tag)

    def normalised(self, message: RoutingMessage) -> RoutingMessage:
        """A routing message, corrected if its sender did not yet know a decision that we know.
        Called only while `active` is not empty."""
        return self.decisions.normalised(message)

    def postpone(self, op: OpId) -> bool:
        """Whether an advertisement that all brokers know must wait for a cut of our pubend. Called
        only while `touched` is not empty."""
        return self.cutter.postpone(op)

    def effective(self, op: OpId, *, failed: bool) -> None:
        """A local client's request was answered. Called only while `open` is not empty."""
        for local in self.participant.effective(op, failed=failed):
            if local.parts[op.client].plan is not None:
                self.plans.effective(local, op.client)
            self.invitations.effective(local, op.client)

    # ── operations of transactions alone ─────────────────────────────────────────────────

    def _stage(self, op: OpId, request: StageRequest) -> None:
        problem = self._stranger(op, request.tag, request) or self._unfit(op, request)
        if problem is not None:
            self.out.fail(op, *problem)
            return
        part = self.participant.work(op, request.tag, request)
        part.staged.append((request.tag.order, request.body))
        self.out.answer(op, Done(op.sequence))

    def _invite(self, op: OpId, request: InviteRequest) -> None:
        tx, order = request.tag.tx, request.tag.order
        problem = self._stranger(op, request.tag, request) or self._unfit(op, request)
        if problem is not None:
            self.out.fail(op, *problem)
            return
        self.participant.work(op, request.tag, request).invited.append(request.body)
        timeout_s = self.participant.state.locals[tx].timeout_s
        isolated = self.versions.is_open(tx)
        self.invitations.pass_on(Invite(tx, op, order, request.body, timeout_s, isolated), "")

    # ── objections ───────────────────────────────────────────────────────────────────────

    def _stranger(self, op: OpId, tag: Tag, request: TagRequest) -> Problem:
        """Objects to clients that neither began the transaction nor were invited, and to too many
        or too large operations in it."""
        tx = tag.tx
        local = self.participant.get(tx)
        if local is None:
            error = PART_MOVES.refusal(PartPhase.CONCLUDED, PartEvent.OPERATION, tx)
            text = f"transaction {tx} is over, or {op.client} was never invited to it"
            return Objection(error, f"{text}: use a transaction that is open")
        if self.coordinator.coordinates(op, tx):
            problem = self.coordinator.objection(tx)
        else:
            phase = self.participant.phase(local, self.invitations.open_one(local, op))
            error = PART_MOVES.refusal(phase, PartEvent.OPERATION, tx)
            text = f"{op.client} has no part in transaction {tx}: it must be invited first"
            problem = Objection(error, text) if error else None
        if problem is not None:
            return problem
        part = local.parts.get(op.client, ClientPart(""))
        if part.version and part.epoch != op.epoch:
            text = f"transaction {tx} is being aborted, because an earlier session of {op.client}"
            return Objection("TransactionOver", f"{text}, which took part in it, has ended")
        if part.version >= MOST_OPERATIONS:
            text = f"a client may have at most {MOST_OPERATIONS:,} operations in one transaction"
            return Objection("MisuseError", f"{text}; use several transactions")
        if part.size_bytes + size_of(request) > MOST_BYTES:
            text = f"the part of a client in a transaction may have at most {MOST_BYTES:,} bytes"
            return Objection("MisuseError", f"{text}; use several transactions")
        return None

    def _unfit(self, op: OpId, request: StageRequest | InviteRequest) -> Problem:
        """Objects to an event outside its client's advertisements, those of this transaction
        included: only advertised events have attracted their subscriptions. So this holds for
        invitations, too."""
        attributes, problem = attributes_of(request.body)
        if problem is not None:
            return problem
        tx = request.tag.tx
        part = self.participant.state.locals[tx].parts.get(op.client, ClientPart(op.epoch))
        return self.participant.not_advertised(op.client, tx, attributes, part.unadvertised)

    # ── neighbours ───────────────────────────────────────────────────────────────────────

    def receive(self, message: TxMessage, source: Hop) -> None:
        self._messages[type(message)](message, source)

    def _opened(self, message: messages.Opening, source: Hop) -> None:
        self.versions.open(message, source.name)

    def _prepared(self, message: messages.Prepare, source: Hop) -> None:
        self.versions.check(message, source.name)

    def _echoed(self, message: messages.Echoed, source: Hop) -> None:
        if message.what in (decisions.DECIDE, decisions.EFFECTIVE):
            self.decisions.echoed(message, source.name)
            return
        flood = self.courier.echoed(message, source.name)
        if flood is not None:
            self.decider.answered(flood)

    def forget(self, neighbour: str) -> None:
        """A neighbour has lost its state, or was given up: stop waiting for its answers. Decisions
        still concern the brokers behind it and are sent again when it is back: see `join`."""
        for flood in self.courier.forget(neighbour):
            self.decider.answered(flood)
        self.invitations.forget(neighbour)

    def dismiss(self, neighbour: str) -> None:
        """The broker is not a neighbour any more."""
        self.forget(neighbour)
        self.decisions.dismiss(neighbour)

    def join(self, neighbour: str) -> None:
        """A link restarts from scratch: send unsettled decisions and open questions again, schedule
        queries for awaited decisions, and repeat withdrawals."""
        self.decisions.tell_again(neighbour)
        self.courier.ask_again(neighbour)
        self.decisions.ask_later()
        self.participant.withdraw_again()

    def witnesses(self, tx: str) -> list[str]:
        """At the root: the neighbours that must know a decision before our cut."""
        return self.decisions.witnesses(tx) if self.courier.is_root else []

    def staging(self) -> set[str]:
        """Local clients whose events wait for a decision, for a cut, or to be logged."""
        return self.participant.staging() | self.cutter.staging()

    # ── time ─────────────────────────────────────────────────────────────────────────────

    def overdue(self, text: str) -> None:
        """A timer has fired: see `TxTimer`."""
        match parse_timer(text):
            case Unanswered(op):
                self.root_requests.unanswered(op)
            case Abandoned(tx):
                self.decider.abandoned(tx)
            case Overdue(tx):
                self._overdue(tx)

    def _overdue(self, tx: str) -> None:
        """The root may not have been reached: set the timer again, and resubmit or give up."""
        local = self.participant.get(tx)
        if local is None:
            self.coordinator.still_spreading(tx, self.decisions.concerned(tx))
            self.decisions.overdue(tx)
            return
        self.out.set_timer(Overdue(tx), self.out.now + max(local.timeout_s, GRACE_S))
        if self.coordinator.submit_again(local):
            return
        local.withdrawn = False
        late = TimeoutReason.after(local.timeout_s, self.invitations.missing(local))
        self.coordinator.give_up(local, late)

    def recover(self, now: float) -> list[SetTimer]:
        """Timers after a restart; each runs again in full."""
        watched: dict[TxTimer, float] = {}
        for tx, wait_s in self.decider.watched():
            watched[Abandoned(tx)] = wait_s
        for tx, local in self.participant.state.locals.items():
            watched[Overdue(tx)] = local.timeout_s
        for tx in (*self.coordinator.state.coordinations, *self.decisions.awaited()):
            watched.setdefault(Overdue(tx), GRACE_S)
        for question, wait_s in self.root_requests.state.questions.items():
            watched[Unanswered(op_of(question))] = wait_s
        for op, held in self.root_requests.state.waiting.items():
            watched[Unanswered(op)] = held.request.timeout_s
        return [SetTimer(timer_key(timer), now + wait_s) for timer, wait_s in watched.items()]

    # ── snapshots ────────────────────────────────────────────────────────────────────────

    def image(self) -> TxState:
        """Everything except the outcomes, which are many."""
        image = TxState()
        for owner, name in self._imaged():
            setattr(image, name, getattr(owner, name))
        for (what, tx), flood in self.courier.state.floods.items():
            image.floods[f"{what} {tx}"] = flood
        for tx, known in self.decisions.state.active.items():
            image.active[tx] = Active(**asdict(known), cutting=self.cutter.must_cut(tx))
        image.held = [*self.decisions.state.held, *self.root_requests.state.waiting.values()]
        return image

    def restore(self, image: TxState) -> None:
        for owner, name in self._imaged():
            value = getattr(image, name)
            if isinstance(value, dict):
                getattr(owner, name).update(value)  # other objects hold a reference to this table
            else:
                setattr(owner, name, value)
        for flood in image.floods.values():
            self.courier.state.floods[flood.what, flood.tx] = flood
        for tx, active in image.active.items():
            told = asdict(active)
            if told.pop("cutting"):
                self.cutter.state.touched[tx] = Touched(active.decide, active.settled)
                self.versions.await_cut(active.decide)
            self.decisions.state.active[tx] = Decision(**told)
        for held in image.held:
            if held.tx:
                self.decisions.state.held.append(held)
                self.versions.hold(held)
            else:
                self.root_requests.state.waiting[held.op] = held

    def _imaged(self) -> Iterator[tuple[Any, str]]:
        """Owners of state, with the fields that have the same name in an image."""
        parts = (self.participant, self.coordinator, self.invitations, self.versions)
        others = (self.root_requests, self.decisions, self.cutter, self.decider)
        apart = {"active", "held", "outcomes", "keys"}
        for each in (*parts, *others):
            for name in each.state.__struct_fields__:
                if name in TxState.__struct_fields__ and name not in apart:
                    yield each.state, name

    @property
    def outcomes(self) -> Mapping[str, TxOutcome]:
        return self.decider.state.outcomes

    def remember(self, tx: str, outcome: TxOutcome) -> None:
        self.decider.state.remember(tx, outcome)

    def validate(self) -> None:
        for tx, known in self.decisions.state.active.items():
            if known.decide.tx != tx:
                raise InvariantError(f"{tx} is decided under another name")
        for tx, local in self.participant.state.locals.items():
            if self.decisions.is_active(tx):
                raise InvariantError(f"{tx} is decided, but still open for {list(local.parts)}")
