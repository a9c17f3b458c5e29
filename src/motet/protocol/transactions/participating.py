"""Clients of ours in transactions: what they ask for, invitations, and what they contribute.

A client takes part in a transaction that it has begun, or to which it was invited and has not yet
answered; or that has a plan which names it, and then we do its part (`following`). What it adds is
installed at once, tentatively; what it removes is only marked; what it publishes is kept here. All
of it takes effect, or is withdrawn, when the decision comes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec import Raw

from motet.errors import MotetError
from motet.model import Hop, OpId, Value, check_attributes, decode_attributes
from motet.model.limits import MAX_EVENT_BYTES
from motet.protocol.contract import SetTimer
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Done,
    InviteRequest,
    Request,
    RoutingRequest,
    StageRequest,
    SubscribeRequest,
    Tag,
    UnadvertiseRequest,
    UnsubscribeRequest,
)
from motet.protocol.transactions.concluding import Concluding
from motet.protocol.transactions.effects import op_of
from motet.protocol.transactions.messages import (
    MOST_OPERATIONS,
    Begun,
    Contribution,
    Ended,
    Engage,
    Query,
    Withdraw,
)
from motet.protocol.transactions.state import (
    Coordination,
    Held,
    Invitation,
    Local,
    Part,
)

MOST_BYTES = 4 << 20
"""Of one client in one transaction: filters, invitations, and events. And what all of them together
may send to each other, events apart: a decision must fit into a frame."""
GRACE_S = 5.0
"""How much longer than the coordinator a participant's broker waits before it gives up."""

QUESTION = "? "
"""Before a request, where a timer would name a transaction: it asks for an outcome."""

WATCH = "! "
"""Before a transaction: the root waits for it, besides whoever else waits for it there."""

LATE = "not complete within"
"""How the reason of what has taken too long begins."""

Problem = tuple[str, str] | None
"""An error, and its text."""
TagRequest = RoutingRequest | StageRequest | InviteRequest


class Participating(Concluding):
    # ── what clients ask for ─────────────────────────────────────────────────────────────

    def objection(self, op: OpId, request: RoutingRequest) -> Problem:
        """Why a request cannot be, as far as transactions know."""
        if request.tag is not None:
            problem = self._stranger(op, request.tag, request)
            if isinstance(request, SubscribeRequest | UnsubscribeRequest):
                problem = problem or self._unordered(op.client)
            if problem is not None:
                return problem
        if isinstance(request, AdvertiseRequest | SubscribeRequest):
            return self._taken_by_plan(op, request)
        tx = request.tag.tx if request.tag is not None else ""
        return self._held(OpId(op.client, op.epoch, request.target), tx)

    def _held(self, target: OpId, tx: str, called: str = "") -> Problem:
        """Why it cannot be taken back, in this transaction or in none."""
        holder = self._holder(target)
        if not holder:
            return None
        number, client = target.sequence, target.client
        called = called or f"operation {number}"
        if holder == tx and tx in self.state.locals:
            part = self.state.locals[holder].parts[client]
            if number not in part.ended and number not in part.unadvertised:
                return None
            text = f"{called} of {client} was taken back in {holder} before"
            return ("NoSuchOperation", text)
        return (
            "InTransaction",
            f"{called} of {client} is part of transaction {holder}, which is "
            "not decided: wait for it, or do it in that transaction",
        )

    def _unordered(self, client: str) -> Problem:
        """One cut is not enough for who merges all pubends into one order."""
        if client not in self.routing.merging:
            return None
        text = f"{client} receives in total order, and its subscriptions take no part in"
        return ("NotOffered", f"{text} transactions: use a client in publisher order for them")

    def _stranger(self, op: OpId, tag: Tag, request: TagRequest) -> Problem:
        """Whoever neither began a transaction nor was invited has no business in it; and nobody
        may do too much in one."""
        tx = tag.tx
        local = self.state.locals.get(tx)
        if local is None:
            text = f"transaction {tx} is over, or {op.client} was never invited to it"
            return ("TransactionOver", f"{text}: operations belong into one that is open")
        coordination = self.state.coordinations.get(tx)
        if coordination is not None and op_of(tx)[:2] == op[:2] and coordination.kind != "static":
            if coordination.request:
                return ("TransactionOver", f"transaction {tx} is being ended already")
        elif self._open_invitation(local, op) is None:
            text = f"{op.client} has no part in transaction {tx}: it must be invited first"
            return ("NotInvited", text)
        part = local.parts.get(op.client, Part(""))
        if part.version and part.epoch != op.epoch:
            text = f"transaction {tx} is given up: an earlier session of {op.client}, which had"
            return ("TransactionOver", f"{text} part in it, is over")
        if part.version >= MOST_OPERATIONS:
            text = f"a client has at most {MOST_OPERATIONS:,} operations in one transaction"
            return ("MisuseError", f"{text}: do the rest in another one")
        if part.size_bytes + _size_of(request) > MOST_BYTES:
            text = f"what a client does in one transaction has at most {MOST_BYTES:,} bytes"
            return ("MisuseError", f"{text}: do the rest in another one")
        return None

    def _open_invitation(self, local: Local, op: OpId) -> Invitation | None:
        found = [
            each
            for each in local.invitations
            if (each.client, each.epoch) == op[:2] and not each.answer
        ]
        return found[-1] if found else None

    def _holder(self, target: OpId) -> str:
        """The undecided transaction that an operation of a client of ours is part of."""
        for local in self.state.locals.values():
            part = local.parts.get(target.client)
            if part is not None and part.epoch == target.epoch:
                number = target.sequence
                if any(number in each for each in (part.begun, part.ended)) or any(
                    number in each for each in (part.advertised, part.unadvertised)
                ):
                    return local.tx
        return ""

    def hold(self, op: OpId, request: Request) -> bool:
        """Whether a request must wait: it takes back a subscription that begins with a transaction
        which is not settled. Pubends may wait for that one, so it must not go before it has
        come."""
        if not isinstance(request, UnadvertiseRequest | UnsubscribeRequest):
            return False
        tx = self._beginning((OpId(op.client, op.epoch, request.target),))
        if not tx:
            return False
        self.state.held.append(Held(tx, op, request))
        # Its own transaction, if it is part of one, is not complete before it is answered.
        local = self.state.locals.get(request.tag.tx) if request.tag is not None else None
        part = local.parts.get(op.client) if local is not None else None
        if part is not None and part.epoch == op.epoch:
            part.pending[op.sequence] = None
        return True

    def _beginning(self, ops: Iterable[OpId]) -> str:
        """The transaction, decided but not settled, that one of these begins with."""
        if not self.state.active:
            return ""
        wanted = set(ops)
        for tx, active in self.state.active.items():
            if any(begun.op in wanted for begun in active.decide.begun):
                return tx
        return ""

    def _release(self, tx: str) -> None:
        """A transaction is settled: what has waited for that goes on."""
        if self.state.held:
            released = [each for each in self.state.held if each.tx == tx]
            for each in released:
                if each.forsaken is not None:
                    self.routing.forsaken.pop(each.forsaken, None)
            self._effects.released += released
            self.state.held = [each for each in self.state.held if each.tx != tx]

    def _own(self, local: Local, client: str, epoch: str) -> Part:
        """The part of a client. One of an earlier session that did nothing is void; had it done
        anything, the transaction would have been given up with it."""
        part = local.parts.get(client)
        if part is None or (part.epoch != epoch and not part.version):
            part = local.parts[client] = Part(epoch)
        return part

    def _part(self, op: OpId, tag: Tag, request: TagRequest) -> Part:
        part = self._own(self.state.locals[tag.tx], op.client, op.epoch)
        part.version += 1
        part.size_bytes += _size_of(request)
        return part

    def note(self, op: OpId, request: RoutingRequest, tag: Tag) -> bool:
        """An operation of a client of ours is part of a transaction. True: routing must install
        it, and tell when it is effective."""
        part = self._part(op, tag, request)
        if isinstance(request, AdvertiseRequest | SubscribeRequest):
            kept = part.begun if isinstance(request, SubscribeRequest) else part.advertised
            kept[op.sequence] = tag.order
            part.pending[op.sequence] = None
            return True
        marks = part.unadvertised if isinstance(request, UnadvertiseRequest) else part.ended
        marks[request.target] = tag.order
        return False

    def effective(self, op: OpId, *, failed: bool) -> None:
        """A request of a client of ours was answered."""
        for local in list(self.state.locals.values()):  # one may be decided thereby
            part = local.parts.get(op.client)
            if part is None or part.epoch != op.epoch or op.sequence not in part.pending:
                continue
            del part.pending[op.sequence]
            if failed:
                part.begun.pop(op.sequence, None)
                part.advertised.pop(op.sequence, None)
            if not part.pending:
                self._engaged_in(local, op.client)
                for invitation in list(local.invitations):
                    if invitation.client == op.client and invitation.answer:
                        self._complete(local, invitation)

    def stage(self, op: OpId, request: StageRequest) -> None:
        problem = self._stranger(op, request.tag, request) or self._unfit(op, request)
        if problem is not None:
            self._fail(op, *problem)
            return
        part = self._part(op, request.tag, request)
        part.staged.append((request.tag.order, request.body))
        self._answer(op, Done(op.sequence))

    def _unfit(self, op: OpId, request: StageRequest | InviteRequest) -> Problem:
        """Does an event lie inside what its client has advertised, before or in here? Only then
        subscriptions to it were attracted, so an invitation must, too."""
        attributes, problem = attributes_of(request.body)
        if problem is not None:
            return problem
        part = self.state.locals[request.tag.tx].parts.get(op.client, Part(op.epoch))
        return self._not_advertised(op.client, request.tag.tx, attributes, part.unadvertised)

    def _is_plainly_advertised(self, client: str, body: bytes) -> bool:
        """Does an event lie inside what its client has advertised, and is none of that part of a
        transaction? The index tells without decoding it. If not, one has to look closer."""
        routing = self.routing
        if len(body) > MAX_EVENT_BYTES or any(op.client == client for op in routing.undecided):
            return False
        hops = routing.advertisements.hops_encoded(body)
        return bool(hops & routing.bits.bit(Hop.client(client)))

    def _not_advertised(
        self, client: str, tx: str, attributes: dict[str, Value], but: Container[int]
    ) -> Problem:
        own = self.routing.advertisements.from_source(Hop.client(client))
        usable = [e for e in own if e.tx in ("", tx) and e.id.sequence not in but]
        if any(entry.filter.matches(attributes) for entry in usable):
            return None
        text = f"the event {attributes} lies outside what {client} has advertised: advertise it"
        return ("NotAdvertised", f"{text}, before the transaction or in it")

    def contribution(self, local: Local, client: str) -> Contribution:
        part = local.parts.get(client) or Part("")
        table = self.routing.subscriptions
        begun = [
            Begun(op, entry.filter, order)
            for number, order in part.begun.items()
            if (entry := table.get(op := OpId(client, part.epoch, number))) is not None
        ]
        ended = [
            Ended(op, entry.filter, order)
            for number, order in part.ended.items()
            if (entry := table.get(op := OpId(client, part.epoch, number))) is not None
        ]
        events = len(part.staged)
        pubend = self.routing.hosted if events else ""
        changes: list[Begun | Ended] = [*begun, *ended]
        size_bytes = sum([len(each.filter.to_bytes()) for each in changes])
        size_bytes += sum([len(memoryview(body)) for body in part.invited])
        done = (tuple(begun), tuple(ended), events, pubend, tuple(part.invited), size_bytes)
        # Who was asked and does nothing is not concerned.
        return Contribution(client, part.version, *done, self.name if part.version else "")

    def _local(self, tx: str, timeout_s: float) -> Local:
        local = self.state.locals.get(tx)
        if local is None:
            local = self.state.locals[tx] = Local(tx, timeout_s)
            mine = tx in self.state.coordinations
            at = self.now + timeout_s + (0.0 if mine else GRACE_S)
            self._effects.timers.append(SetTimer(("transaction", tx), at))
        return local

    def _complete(self, local: Local, invitation: Invitation) -> None:
        raise NotImplementedError

    def _taken_by_plan(self, op: OpId, request: AdvertiseRequest | SubscribeRequest) -> Problem:
        raise NotImplementedError

    def _engaged_in(self, local: Local, client: str) -> None:
        raise NotImplementedError

    def _refuse(self, letter: Engage, reason: str) -> None:
        raise NotImplementedError

    # ── ends ─────────────────────────────────────────────────────────────────────────────

    def left(self, client: str, epoch: str) -> None:
        """A session of a client of ours has ended: what it takes part in cannot go on."""
        for local in list(self.state.locals.values()):
            part = local.parts.get(client)
            takes_part = part is not None and part.epoch == epoch and part.version > 0
            open_ones = [
                each for each in local.invitations if (each.client, each.epoch) == (client, epoch)
            ]
            mine = self.state.coordinations.get(local.tx)
            coordinates = op_of(local.tx)[:2] == (client, epoch) and (
                mine is not None and mine.kind != "static" and not mine.submitted
            )
            if takes_part or open_ones or coordinates:
                self.give_up(local, f"{client} has gone")
            for each in open_ones:
                each.refusal, each.answer = f"{client} has gone", 0
                self._complete(local, each)
        for asked in list(self.state.asked.values()):
            if not asked.requester and asked.op[:2] == (client, epoch):
                del self.state.asked[str(asked.op)]
        for question in list(self.state.questions):
            if op_of(question)[:2] == (client, epoch):
                del self.state.questions[question]
        if self.state.held:
            gone = [each for each in self.state.held if each.op[:2] == (client, epoch)]
            self.state.held = [h for h in self.state.held if h not in gone or h.forsaken]
            for held in gone:
                if isinstance(held.request, Engage):
                    self._refuse(held.request, f"{client} has gone")

    def give_up(self, local: Local, reason: str) -> None:
        """Ask the root to abort, if it has not decided."""
        if not local.withdrawn:
            local.withdrawn = True
            mine = self.state.coordinations.get(local.tx)
            key = mine.key if mine is not None else ""
            self._post(self.root, Withdraw(local.tx, self.name, reason, key))

    def overdue(self, tx: str) -> None:
        """Time has run out. If nobody answers, the root was not reached: try again later."""
        if tx.startswith(QUESTION):
            self._unanswered(op_of(tx.removeprefix(QUESTION)))
            return
        if tx.startswith(WATCH):
            self._forsaken(tx.removeprefix(WATCH))
            return
        coordination = self.state.coordinations.get(tx)
        local = self.state.locals.get(tx)
        if local is None:
            if coordination is not None:  # decided, and somebody is not there to obey
                self._report(coordination, effective=False)
            if tx in self._awaited():
                self._post(self.root, Query(tx, self.name))
                self._effects.timers.append(SetTimer(("transaction", tx), self.now + GRACE_S))
            return
        at = self.now + max(local.timeout_s, GRACE_S)
        self._effects.timers.append(SetTimer(("transaction", tx), at))
        if coordination is not None and coordination.submitted:
            self._submit(coordination)  # the letter may be lost
            return
        local.withdrawn = False
        missing = self._unfinished(local)
        self.give_up(local, f"{LATE} {local.timeout_s:g} s{missing}")

    def _unanswered(self, op: OpId) -> None:
        waited_s = self.state.questions.pop(str(op), None)
        if waited_s is not None:
            text = f"the root {self.root} did not answer within {waited_s:g} s: ask again"
            self._fail(op, "UnavailableError", text)

    def _forsaken(self, tx: str) -> None:
        raise NotImplementedError

    def _awaited(self) -> list[str]:
        raise NotImplementedError

    def _submit(self, coordination: Coordination) -> None:
        raise NotImplementedError

    def _report(self, coordination: Coordination, *, effective: bool = True) -> None:
        raise NotImplementedError

    def _unfinished(self, local: Local) -> str:
        waiting = [each.client for each in local.invitations]
        for asked in self.state.asked.values():
            if asked.tx == local.tx:
                waiting += [*asked.clients, *(f"those behind {n}" for n in asked.neighbours)]
        names = ", ".join(dict.fromkeys(waiting))
        return f": {names} did not answer" if names else ""


def _size_of(request: TagRequest) -> int:
    if isinstance(request, AdvertiseRequest | SubscribeRequest):
        return len(request.filter.to_bytes())
    if isinstance(request, StageRequest | InviteRequest):
        return len(memoryview(request.body))
    return 0


def too_large(contributions: Iterable[Contribution]) -> str:
    """Why what several clients have contributed cannot travel together; empty if it can."""
    size_bytes = sum(each.size_bytes for each in contributions)
    if size_bytes <= MOST_BYTES:
        return ""
    text = f"its filters and invitations have {size_bytes:,} bytes, more than {MOST_BYTES:,}"
    return f"{text}: do it in several transactions"


def newest(known: dict[str, Contribution], told: Contribution) -> None:
    before = known.get(told.client)
    if before is None or before.version < told.version:
        known[told.client] = told


def attributes_of(body: Raw | bytes) -> tuple[dict[str, Value], Problem]:
    try:
        attributes = decode_attributes(body)
        check_attributes(attributes)
    except MotetError as error:
        return {}, (type(error).__name__, str(error))
    if len(memoryview(body)) > MAX_EVENT_BYTES:
        return {}, ("EventError", f"an event has at most {MAX_EVENT_BYTES} bytes")
    return attributes, None
