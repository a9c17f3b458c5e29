"""The participants' broker: what its clients do in transactions until these are decided.

A client takes part in a transaction that it has begun, or to which it was invited and has not yet
answered; or in one whose plan names it, and then its broker carries out its part (`plans`). What
it adds is installed at once, tentatively; what it removes is only marked; what it publishes is
kept here. All of it takes effect, or is withdrawn, when the decision arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Raw

from motet.errors import MotetError
from motet.model import Hop, OpId, Value, check_attributes, decode_attributes
from motet.model.limits import MAX_EVENT_BYTES
from motet.protocol.room import Objection
from motet.protocol.routing.messages import Unadvertise, Unsubscribe
from motet.protocol.routing.state import RoutingState
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    AdvertiseRequest,
    AnswerRequest,
    Decided,
    Done,
    Invited,
    InviteRequest,
    Over,
    RoutingRequest,
    StageRequest,
    StandingEntry,
    SubscribeRequest,
    Tag,
    UnadvertiseRequest,
)
from motet.protocol.session.state import Session
from motet.protocol.transactions.courier import Courier, Outgoing, Overdue
from motet.protocol.transactions.cutter import TxTables, hops_of
from motet.protocol.transactions.messages import (
    Begun,
    Contribution,
    Decide,
    Ended,
    Invite,
    OtherReason,
    Reason,
    Reply,
    Withdraw,
)
from motet.protocol.transactions.state import (
    AwaitedReplies,
    ClientPart,
    Forbidden,
    Ignored,
    InvitationRead,
    InvitationState,
    Local,
    Move,
    Moves,
    OpenInvitation,
    ParticipantState,
)

ARRIVING = 0
"""Stands among the pending operations of a part for the arrival of its client, which has moved."""
MOST_BYTES = 4 << 20
"""Limit for one client in one transaction: filters, invitations and events. Also for all of its
clients together, without events: a decision must fit into a frame."""
GRACE_S = 5.0
"""How much longer than the coordinator's broker a participant's broker waits before it gives up."""

Problem = Objection | None
TagRequest = RoutingRequest | StageRequest | InviteRequest


class PartPhase(Move):
    """The phase of one invitation of a local client."""

    OUTSIDE = "not invited"
    INVITED = "invited"
    WORKING = "working"
    ANSWERED = "answered"
    """Some of its operations are not effective yet."""
    CONCLUDED = "concluded"


class PartEvent(Move):
    INVITATION = "an invitation"
    OPERATION = "an operation"
    EARLY_ANSWER = "an answer before all operations are effective"
    ANSWER = "an answer"
    EFFECT = "the effect of the last operation"
    DECISION = "a decision"


PART_MOVES: Moves[PartPhase, PartEvent] = Moves(
    "the part in",
    {
        PartPhase.OUTSIDE: {
            PartEvent.INVITATION: PartPhase.INVITED,
            PartEvent.OPERATION: Forbidden("NotInvited"),
            PartEvent.EARLY_ANSWER: Forbidden("NotInvited"),
            PartEvent.ANSWER: Forbidden("NotInvited"),
        },
        PartPhase.INVITED: {
            PartEvent.OPERATION: PartPhase.WORKING,
            PartEvent.EARLY_ANSWER: PartPhase.ANSWERED,
            PartEvent.ANSWER: PartPhase.CONCLUDED,
            PartEvent.EFFECT: Ignored("it has not answered yet"),
            PartEvent.DECISION: PartPhase.CONCLUDED,
        },
        PartPhase.WORKING: {
            PartEvent.OPERATION: PartPhase.WORKING,
            PartEvent.EARLY_ANSWER: PartPhase.ANSWERED,
            PartEvent.ANSWER: PartPhase.CONCLUDED,
            PartEvent.EFFECT: Ignored("it has not answered yet"),
            PartEvent.DECISION: PartPhase.CONCLUDED,
        },
        PartPhase.ANSWERED: {
            PartEvent.OPERATION: Forbidden("NotInvited"),
            PartEvent.EARLY_ANSWER: Forbidden("NotInvited"),
            PartEvent.ANSWER: Forbidden("NotInvited"),
            PartEvent.EFFECT: PartPhase.CONCLUDED,
            PartEvent.DECISION: PartPhase.CONCLUDED,
        },
        PartPhase.CONCLUDED: {
            PartEvent.OPERATION: Forbidden("TransactionOver"),
            PartEvent.EARLY_ANSWER: Forbidden("TransactionOver"),
            PartEvent.ANSWER: Forbidden("TransactionOver"),
        },
    },
)


@dataclass(eq=False)
class Participant:
    _courier: Courier
    _out: Outgoing
    _tables: RoutingState
    _versions: TxTables
    _sessions: Sessions
    _coordinated: Container[str]
    """Transactions that local clients began and that are not reported yet."""
    state: ParticipantState = field(default_factory=ParticipantState, init=False)
    arriving: Callable[[str, str, bool], bool] = field(default=lambda *_: False, init=False)
    """Whether a session has moved here, and a plan must wait that removes an advertisement of it,
    or (if true) publishes for it."""

    # ── transactions and parts ───────────────────────────────────────────────────────────

    def get(self, tx: str) -> Local | None:
        return self.state.locals.get(tx)

    def open(self, tx: str, timeout_s: float) -> Local:
        local = self.state.locals.get(tx)
        if local is None:
            local = self.state.locals[tx] = Local(tx, timeout_s)
            grace_s = 0.0 if tx in self._coordinated else GRACE_S
            self._out.set_timer(Overdue(tx), self._out.now + timeout_s + grace_s)
        return local

    def forget(self, tx: str) -> None:
        self.state.locals.pop(tx, None)

    def part(self, local: Local, client: str, epoch: str) -> ClientPart:
        """The part of a client. An empty part of an earlier session is replaced; if it were not
        empty, the transaction would have been given up when that session ended."""
        part = local.parts.get(client)
        if part is None or (part.epoch != epoch and not part.version):
            part = local.parts[client] = ClientPart(epoch)
        return part

    def phase(self, local: Local | None, invitation: OpenInvitation | None) -> PartPhase:
        if local is None:
            return PartPhase.CONCLUDED
        if invitation is None:
            return PartPhase.OUTSIDE
        if invitation.answer:
            return PartPhase.ANSWERED
        part = local.parts.get(invitation.client)
        return PartPhase.WORKING if part is not None and part.version else PartPhase.INVITED

    def holder(self, target: OpId) -> str:
        """The undecided transaction that an operation of a local client is part of."""
        number = target.sequence
        for local in self.state.locals.values():
            part = local.parts.get(target.client)
            if part is not None and part.epoch == target.epoch and _names(part, number):
                return local.tx
        return ""

    def contribution(self, local: Local, client: str) -> Contribution:
        part = local.parts.get(client) or ClientPart("")
        table = self._tables.subscriptions
        begun: list[Begun] = []
        for number, order in part.begun.items():
            entry = table.get(op := OpId(client, part.epoch, number))
            if entry is not None:
                begun.append(Begun(op, entry.filter, order))
        ended: list[Ended] = []
        for number, order in part.ended.items():
            entry = table.get(op := OpId(client, part.epoch, number))
            if entry is not None:
                ended.append(Ended(op, entry.filter, order))
        events = len(part.staged)
        pubend = self._tables.hosted if events else ""
        size_bytes = 0
        changes: list[Begun | Ended] = [*begun, *ended]
        for each in changes:
            size_bytes += len(each.filter.to_bytes())
        for body in part.invited:
            size_bytes += len(memoryview(body))
        done = (tuple(begun), tuple(ended), events, pubend, tuple(part.invited), size_bytes)
        # The decision does not concern a client that was invited and did nothing.
        broker = self._courier.name if part.version else ""
        return Contribution(client, part.version, *done, broker)

    def staging(self) -> set[str]:
        """Clients whose events wait for a decision."""
        found: set[str] = set()
        for local in self.state.locals.values():
            found |= {client for client, part in local.parts.items() if part.staged}
        return found

    # ── operations ───────────────────────────────────────────────────────────────────────

    def work(self, op: OpId, tag: Tag, request: TagRequest) -> ClientPart:
        """Add an operation of a local client, already checked, to its part of a transaction."""
        part = self.part(self.state.locals[tag.tx], op.client, op.epoch)
        part.version += 1
        part.size_bytes += size_of(request)
        return part

    def note(self, op: OpId, request: RoutingRequest, tag: Tag) -> bool:
        """The same for an operation on the tables. True: routing must install it, and report when
        it is effective."""
        part = self.work(op, tag, request)
        if isinstance(request, AdvertiseRequest | SubscribeRequest):
            kept = part.begun if isinstance(request, SubscribeRequest) else part.advertised
            kept[op.sequence] = tag.order
            part.pending[op.sequence] = None
            return True
        marks = part.unadvertised if isinstance(request, UnadvertiseRequest) else part.ended
        marks[request.target] = tag.order
        return False

    def wait(self, op: OpId, tx: str) -> None:
        """A client's request must wait; until it is answered, the client's part is not complete."""
        local = self.state.locals.get(tx)
        part = local.parts.get(op.client) if local is not None else None
        if part is not None and part.epoch == op.epoch:
            part.pending[op.sequence] = None

    def effective(self, op: OpId, *, failed: bool) -> Iterator[Local]:
        """A local client's request was answered. Yields the transactions in which all of the
        client's operations are effective now."""
        for local in list(self.state.locals.values()):  # this may decide one of them
            part = local.parts.get(op.client)
            if part is None or part.epoch != op.epoch or op.sequence not in part.pending:
                continue
            del part.pending[op.sequence]
            if failed:
                part.begun.pop(op.sequence, None)
                part.advertised.pop(op.sequence, None)
            if not part.pending:
                yield local

    # ── objections ───────────────────────────────────────────────────────────────────────

    def held(self, target: OpId, tx: str, called: str = "") -> Problem:
        """Why an operation cannot be removed in this transaction, or, if `tx` is empty, outside of
        any."""
        holder = self.holder(target)
        number, client = target.sequence, target.client
        called = called or f"operation {number}"
        if not holder:
            if not tx or not self._has_ended(target):
                return None
            text = f"{called} of {client} is not in force: another transaction has ended it"
            return Objection("NoSuchOperation", text)
        if holder == tx and tx in self.state.locals:
            part = self.state.locals[holder].parts[client]
            if number not in part.ended and number not in part.unadvertised:
                return None
            text = f"{called} of {client} was already removed in transaction {holder}"
            return Objection("NoSuchOperation", text)
        return Objection(
            "InTransaction",
            f"{called} of {client} is part of transaction {holder}, which is "
            "not decided: wait for it, or do it in that transaction",
        )

    def _has_ended(self, target: OpId) -> bool:
        """Whether a decided transaction has ended a subscription, which stays until its client has
        received what it is owed. A second end would be another place in the same streams."""
        entry = self._tables.subscriptions.get(target)
        return entry is not None and entry.ended

    def unordered(self, client: str) -> Problem:
        """A client in total order merges all pubends, and would need more than one cut."""
        if client not in self._versions.merging:
            return None
        text = f"{client} receives in total order, and its subscriptions take no part in"
        return Objection(
            "NotOffered", f"{text} transactions: use a client in publisher order for them"
        )

    def is_plainly_advertised(self, client: str, body: bytes) -> bool:
        """Is an event inside its client's advertisements, none of which is part of a transaction?
        The index tells without decoding it. If not, `not_advertised` looks closer."""
        tables = self._tables
        if len(body) > MAX_EVENT_BYTES or any(
            op.client == client for op in self._versions.marks.undecided
        ):
            return False
        hops = tables.advertisements.hops_encoded(body)
        return bool(hops & tables.bits.bit(Hop.client(client)))

    def not_advertised(
        self, client: str, tx: str, attributes: dict[str, Value], but: Container[int]
    ) -> Problem:
        """Objects to an event outside its client's advertisements, of before or of this
        transaction. Only advertised events have attracted their subscriptions."""
        own = self._tables.advertisements.from_source(Hop.client(client))
        usable = [e for e in own if e.tx in ("", tx) and e.id.sequence not in but]
        if any(entry.filter.matches(attributes) for entry in usable):
            return None
        text = f"the event {attributes} lies outside what {client} has advertised: advertise it"
        return Objection("NotAdvertised", f"{text}, before the transaction or in it")

    # ── giving up ────────────────────────────────────────────────────────────────────────

    def has_worked(self, local: Local, client: str, epoch: str) -> bool:
        part = local.parts.get(client)
        return part is not None and part.epoch == epoch and part.version > 0

    def give_up(self, local: Local, reason: Reason, key: str = "") -> None:
        """Ask the root to abort unless it has decided. `key` is the coordinator's."""
        if not local.withdrawn:
            local.withdrawn = True
            told = Withdraw(local.tx, self._courier.name, reason.text, key)
            self._courier.post(self._courier.root, told)

    def withdraw_again(self) -> None:
        """The link to the root may have restarted, and letters to it may be lost."""
        for local in list(self.state.locals.values()):
            if local.withdrawn:
                again = OtherReason("aborted earlier")
                told = Withdraw(local.tx, self._courier.name, again.text)
                self._courier.post(self._courier.root, told)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def conclude(self, local: Local, decide: Decide) -> None:
        """Put into effect what local clients did, or withdraw it, last first, and tell them.

        A client that did its own part is told the outcome. A client whose part of a plan we did is
        told only of a commit, with what has begun and ended for it.
        """
        for client, part in local.parts.items():
            if decide.committed:
                self._put_in_force(client, part)
            else:
                self._withdraw(client, part)
        told = Decided(decide.tx, decide.number, decide.committed, decide.reason)
        for client, part in local.parts.items():
            session = self._sessions.current(client, part.epoch)
            if session is None:
                continue  # numbers of an ended session may mean other operations now
            if part.plan is not None:
                if decide.committed:
                    self._out.tell(client, self._with_changes(told, session, part))
                continue  # on an abort: the client never knew of it
            self._out.tell(client, told)
            if not decide.committed:  # for a process that does not know what an earlier process did
                for number in sorted((*part.begun, *part.advertised)):
                    self._out.tell(client, Over(number))
        for each in local.invitations:
            phase = self.phase(local, each)
            PART_MOVES.next(phase, PartEvent.DECISION, decide.tx)
            if phase is PartPhase.ANSWERED:
                answer = OpId(each.client, each.epoch, each.answer)
                self._out.fail(answer, "Aborted", over_text(decide))
        del self.state.locals[local.tx]

    def _with_changes(self, told: Decided, session: Session, part: ClientPart) -> Decided:
        """What a client must be told about its part, which we have carried out."""
        added: list[StandingEntry] = []
        for number in sorted((*part.begun, *part.advertised)):
            op = OpId(session.client, part.epoch, number)
            kind: Literal["advertise", "subscribe"] = "advertise"
            entry = self._tables.advertisements.get(op)
            if number in part.begun:
                kind, entry = "subscribe", self._tables.subscriptions.get(op)
            if entry is not None:
                added.append(
                    StandingEntry(number, kind, session.names.get(number, ""), entry.filter)
                )
        ended = (*part.ended, *part.unadvertised)
        return Decided(told.tx, told.number, True, "", tuple(added), ended)

    def _put_in_force(self, client: str, part: ClientPart) -> None:
        for number in part.unadvertised:
            target = OpId(client, part.epoch, number)
            self._forget_name(target)
            if target in self._tables.advertisements and target not in self._tables.retired:
                self._out.route(Unadvertise(target), Hop.client(client))
        for number in part.ended:
            target = OpId(client, part.epoch, number)
            if target in self._tables.subscriptions:
                self._out.effects.ending.append(target)

    def _withdraw(self, client: str, part: ClientPart) -> None:
        source = Hop.client(client)
        for number in sorted((*part.begun, *part.advertised), reverse=True):
            target = OpId(client, part.epoch, number)
            self._forget_name(target)
            if target in self._tables.subscriptions:
                self._out.route(Unsubscribe(target), source)
            elif target in self._tables.advertisements and target not in self._tables.retired:
                self._out.route(Unadvertise(target), source)

    def _forget_name(self, target: OpId) -> None:
        session = self._sessions.current(target.client, target.epoch)
        if session is not None:
            self._sessions.forget(session, target.sequence)

    # ── inspection ───────────────────────────────────────────────────────────────────────

    def open_invitations(self, client: str, epoch: str) -> list[Invited]:
        """For a client that reconnects: the invitations that it has not answered."""
        return [
            Invited(
                *(local.tx, local.timeout_s, each.order, each.op),
                *(each.body, each.subscriptions),
            )
            for local in self.state.locals.values()
            for each in local.invitations
            if (each.client, each.epoch) == (client, epoch) and not each.answer
        ]


def over_text(decide: Decide) -> str:
    return decide.reason or "the transaction was decided"


def _names(part: ClientPart, number: int) -> bool:
    kinds = (part.begun, part.ended, part.advertised, part.unadvertised)
    return any(number in kind for kind in kinds)


def size_of(request: TagRequest) -> int:
    if isinstance(request, AdvertiseRequest | SubscribeRequest):
        return len(request.filter.to_bytes())
    if isinstance(request, StageRequest | InviteRequest):
        return len(memoryview(request.body))
    return 0


def too_large(contributions: Iterable[Contribution]) -> str:
    """Why the contributions of several clients do not fit into one message; empty if they do."""
    size_bytes = sum(each.size_bytes for each in contributions)
    if size_bytes <= MOST_BYTES:
        return ""
    text = f"its filters and invitations have {size_bytes:,} bytes, more than {MOST_BYTES:,}"
    return f"{text}; use several transactions"


def newest(known: dict[str, Contribution], told: Contribution) -> None:
    """Keep a contribution unless a newer one of the client is known."""
    before = known.get(told.client)
    if before is None or before.version < told.version:
        known[told.client] = told


def attributes_of(body: Raw | bytes) -> tuple[dict[str, Value], Problem]:
    try:
        attributes = decode_attributes(body)
        check_attributes(attributes)
    except MotetError as error:
        return {}, Objection(type(error).__name__, str(error))
    if len(memoryview(body)) > MAX_EVENT_BYTES:
        return {}, Objection("EventError", f"an event has at most {MAX_EVENT_BYTES} bytes")
    return attributes, None


# ── invitations ──────────────────────────────────────────────────────────────────────────


class AskingPhase(Move):
    """The phase of an invitation at a broker that passes it on."""

    UNKNOWN = "unknown"
    ASKED = "asked"
    REPLIED = "replied to"


class AskingEvent(Move):
    INVITE = "an invitation"
    REPLY = "a reply"
    LAST_REPLY = "the last reply"
    STRAY_REPLY = "a reply that is not awaited"
    DECISION = "a decision"


INVITATION_MOVES: Moves[AskingPhase, AskingEvent] = Moves(
    "the invitation",
    {
        AskingPhase.UNKNOWN: {
            AskingEvent.INVITE: AskingPhase.ASKED,
            AskingEvent.STRAY_REPLY: Ignored("its transaction was decided meanwhile"),
        },
        AskingPhase.ASKED: {
            AskingEvent.INVITE: AskingPhase.ASKED,
            AskingEvent.REPLY: AskingPhase.ASKED,
            AskingEvent.LAST_REPLY: AskingPhase.REPLIED,
            AskingEvent.STRAY_REPLY: Ignored("that neighbour has replied, or is gone"),
            AskingEvent.DECISION: AskingPhase.REPLIED,
        },
        AskingPhase.REPLIED: {},  # then it is forgotten, and so UNKNOWN
    },
)


@dataclass(eq=False)
class Invitations:
    """Which clients invitations reach, the missing answers, and all contributions.

    An invitation travels like an event, at once, before anything is decided. Replies are nested: a
    broker that has passed an invitation on replies when all brokers and clients behind it have.
    """

    _courier: Courier
    _out: Outgoing
    _tables: RoutingState
    _versions: TxTables
    _participant: Participant
    state: InvitationState = field(default_factory=InvitationState, init=False)

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def invited(self, invite: Invite, source: Hop) -> None:
        if invite.isolated and not self._versions.is_open(invite.tx):
            # All brokers knew of it before it could invite, so it is decided by now.
            told = Reply(invite.op, (), refusal="the transaction is over")
            self._courier.send(source.name, told)
            return
        self.pass_on(invite, source.name)

    def pass_on(self, invite: Invite, source: str) -> None:
        """`source` is the neighbour that sent it; empty: a local client."""
        INVITATION_MOVES.next(self._phase(invite.op), AskingEvent.INVITE, invite.op)
        neighbours: dict[str, None] = {}
        clients: dict[str, list[int]] = {}
        own: list[OpId] = []
        attributes, problem = attributes_of(invite.body)
        for entry in self._versions.readable(invite, attributes) if problem is None else ():
            if entry.tx:
                own.append(entry.id)
            if entry.source.is_broker and entry.source.name != source:
                neighbours[entry.source.name] = None
            elif not entry.source.is_broker and entry.id[:2] != invite.op[:2]:
                clients.setdefault(entry.source.name, []).append(entry.id.sequence)
        if invite.isolated:
            hops = hops_of(neighbours, dict.fromkeys(clients))
            read = InvitationRead(invite.body, source, hops, tuple(own), invite.op)
            self._versions.note(invite.tx, read)
        gone = [name for name in neighbours if name not in self._tables.bits.neighbours]
        for name in gone:  # a neighbour only in the version that is read
            del neighbours[name]
        asked = AwaitedReplies(invite.tx, invite.op, source, neighbours, dict.fromkeys(clients))
        asked.refusal = f"{gone[0]} was lost" if gone else ""
        self.state.asked[str(invite.op)] = asked
        for neighbour in neighbours:
            self._courier.send(neighbour, invite)
        for client, subscriptions in clients.items():
            asked.reached += 1
            self._call_in(invite, client, tuple(subscriptions))
        self._reply_if_complete(asked)

    def _call_in(self, invite: Invite, client: str, subscriptions: tuple[int, ...]) -> None:
        epoch = self._tables.clients.newest(client) or ""
        local = self._participant.open(invite.tx, invite.timeout_s)
        self._participant.part(local, client, epoch)
        order = f"{invite.order}/{client}"
        body = bytes(invite.body)
        PART_MOVES.next(PartPhase.OUTSIDE, PartEvent.INVITATION, invite.tx)
        invitation = OpenInvitation(
            client, epoch, order, invite.op, body, subscriptions=subscriptions
        )
        local.invitations.append(invitation)
        told = Invited(invite.tx, invite.timeout_s, order, invite.op, body, subscriptions)
        self._out.tell(client, told)

    # ── answers of clients ───────────────────────────────────────────────────────────────

    def open_one(self, local: Local, op: OpId) -> OpenInvitation | None:
        """The last unanswered invitation of a session."""
        found = [
            each
            for each in local.invitations
            if (each.client, each.epoch) == op[:2] and not each.answer
        ]
        return found[-1] if found else None

    def answer(self, op: OpId, request: AnswerRequest) -> None:
        """A client reports that it has done its part, or refuses."""
        local = self._participant.get(request.tx)
        invitation = _find(local, op, request.op) if local is not None else None
        part = local.parts.get(op.client) if local is not None else None
        early = part is not None and part.pending and not request.refusal
        event = PartEvent.EARLY_ANSWER if early else PartEvent.ANSWER
        phase = self._participant.phase(local, invitation)
        refused = PART_MOVES.refusal(phase, event, request.tx)
        if refused or local is None or invitation is None:
            text = f"{op.client} has no open invitation to transaction {request.tx}: it has"
            text += " answered before, or was not invited"
            self._out.fail(op, refused, text)
            return
        invitation.answer, invitation.refusal = op.sequence, request.refusal
        if not early:
            self._complete(local, invitation)

    def effective(self, local: Local, client: str) -> None:
        """All operations of a client in a transaction are effective."""
        for invitation in list(local.invitations):
            if invitation.client == client:
                phase = self._participant.phase(local, invitation)
                if PART_MOVES.next(phase, PartEvent.EFFECT, local.tx) is not None:
                    self._complete(local, invitation)

    def _complete(self, local: Local, invitation: OpenInvitation) -> None:
        """An answered invitation is over, or its client has gone: pass its contribution on."""
        local.invitations.remove(invitation)
        invitation.refusal = invitation.refusal or local.refused
        client = invitation.client
        if invitation.answer:
            answer = OpId(client, invitation.epoch, invitation.answer)
            self._out.answer(answer, Done(answer.sequence))
        own = self._participant.contribution(local, client)
        asked = self.state.asked.get(str(invitation.op))
        if asked is None:
            return
        asked.clients.pop(client, None)
        for each in (own, *local.gathered.values()):
            newest(asked.contributions, each)
        asked.refusal = asked.refusal or invitation.refusal
        self._reply_if_complete(asked)

    # ── replies of neighbours ────────────────────────────────────────────────────────────

    def replied(self, reply: Reply, source: Hop) -> None:
        asked = self.state.asked.get(str(reply.op))
        if asked is None or source.name not in asked.neighbours:
            INVITATION_MOVES.next(self._phase(reply.op), AskingEvent.STRAY_REPLY, reply.op)
            return
        del asked.neighbours[source.name]
        for each in reply.contributions:
            newest(asked.contributions, each)
        asked.reached += reply.reached
        asked.refusal = asked.refusal or reply.refusal
        self._reply_if_complete(asked)

    def _reply_if_complete(self, asked: AwaitedReplies) -> None:
        """Reply once all clients and neighbours asked have replied: the nested acknowledgement."""
        waits = asked.neighbours or asked.clients
        INVITATION_MOVES.next(
            AskingPhase.ASKED, AskingEvent.REPLY if waits else AskingEvent.LAST_REPLY, asked.op
        )
        if waits:
            return
        del self.state.asked[str(asked.op)]
        large = too_large(asked.contributions.values())
        if large:
            asked.contributions, asked.refusal = {}, asked.refusal or large
        if asked.requester:
            told = tuple(asked.contributions.values())
            reply = Reply(asked.op, told, asked.reached, asked.refusal)
            self._courier.send(asked.requester, reply)
            return
        local = self._participant.get(asked.tx)
        for each in asked.contributions.values():
            if local is not None:
                newest(local.gathered, each)
        if asked.refusal:
            if local is not None:
                local.refused = local.refused or asked.refusal
            self._out.fail(asked.op, "InvitationRefused", asked.refusal)
        else:
            self._out.answer(asked.op, Done(asked.op.sequence, str(asked.reached)))

    # ── ends ─────────────────────────────────────────────────────────────────────────────

    def leave(self, local: Local, invitation: OpenInvitation, reason: str) -> None:
        """The session of an invited client has ended."""
        invitation.refusal, invitation.answer = reason, 0
        self._complete(local, invitation)

    def left(self, client: str, epoch: str) -> None:
        """The session has ended: replies to its own invitations are not needed any more."""
        for asked in list(self.state.asked.values()):
            if not asked.requester and asked.op[:2] == (client, epoch):
                del self.state.asked[str(asked.op)]

    def forget(self, neighbour: str) -> None:
        """A neighbour has lost its state, or is gone: its replies are not awaited any more."""
        for asked in list(self.state.asked.values()):
            if neighbour in asked.neighbours:
                del asked.neighbours[neighbour]
                asked.refusal = asked.refusal or f"{neighbour} was lost"
                self._reply_if_complete(asked)
            elif asked.requester == neighbour:
                self.state.asked.pop(str(asked.op), None)

    def refuse(self, tx: str) -> None:
        """The transaction is over. The neighbour that sent the invitation may not know that yet."""
        for asked in self.state.asked.values():
            if asked.tx == tx and asked.requester:
                told = Reply(asked.op, (), asked.reached, "the transaction is over")
                self._courier.send(asked.requester, told)

    def conclude(self, tx: str, reason: str) -> None:
        """It was decided. Local clients that wait for replies are told the reason."""
        for asked in [each for each in self.state.asked.values() if each.tx == tx]:
            INVITATION_MOVES.next(AskingPhase.ASKED, AskingEvent.DECISION, asked.op)
            if not asked.requester and reason:
                self._out.fail(asked.op, "Aborted", reason)
            del self.state.asked[str(asked.op)]

    def missing(self, local: Local) -> str:
        """The clients and neighbours that have not answered, as the end of a sentence."""
        waiting = [each.client for each in local.invitations]
        for asked in self.state.asked.values():
            if asked.tx == local.tx:
                waiting += [*asked.clients, *(f"clients behind {n}" for n in asked.neighbours)]
        names = ", ".join(dict.fromkeys(waiting))
        return f": {names} did not answer" if names else ""

    def _phase(self, op: OpId) -> AskingPhase:
        return AskingPhase.ASKED if str(op) in self.state.asked else AskingPhase.UNKNOWN


def _find(local: Local, op: OpId, invite: OpId) -> OpenInvitation | None:
    """A session's invitation by this event: the first unanswered one, else any."""
    found = [each for each in local.invitations if (each.client, each.epoch) == op[:2]]
    found = [each for each in found if each.op == invite]
    return min(found, key=lambda each: bool(each.answer), default=None)
