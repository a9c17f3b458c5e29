"""Parts of plans, which we carry out for local clients: all of a part, or none of it.

A client that consents to plans need not be asked: a plan names what it removes, and we know the
names; what it adds gets numbers that no request has. So a client is told of its part only when it
is decided, and the part of an absent client is carried out, too.

Subscriptions need not be effective first: a pubend cuts only when all that begin there have
arrived, and the decision is echoed only after the cut. But subscriptions that an advertisement
attracts must arrive before the decision, so they are waited for. For a client that has just moved
here and is to publish, all subscribers must know of its arrival first: else one of them would not
wait for its events, and would get those of the other clients of the plan without them.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Raw
from msgspec.structs import replace

from motet.model import Filter, Hop, OpId
from motet.protocol.room import Objection
from motet.protocol.routing.messages import Advertise, Subscribe
from motet.protocol.routing.state import RoutingState, Table
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ConsentRequest,
    Done,
    SubscribeRequest,
)
from motet.protocol.session.state import GRANTED, Session
from motet.protocol.transactions.courier import Courier, Outgoing
from motet.protocol.transactions.cutter import TxTables
from motet.protocol.transactions.decisions import Decisions
from motet.protocol.transactions.messages import (
    MOST_OPERATIONS,
    Engage,
    Engaged,
    Step,
    Withdraw,
    op_of,
)
from motet.protocol.transactions.participant import (
    ARRIVING,
    MOST_BYTES,
    Participant,
    Problem,
    attributes_of,
)
from motet.protocol.transactions.state import ClientPart, Held, Local


@dataclass(eq=False)
class Plans:
    _courier: Courier
    _out: Outgoing
    _tables: RoutingState
    _versions: TxTables
    _sessions: Sessions
    _participant: Participant
    _decisions: Decisions

    def consent(self, op: OpId, request: ConsentRequest) -> None:
        session = self._sessions.current(op.client, op.epoch)
        assert session is not None
        session.willing = True
        self._out.answer(op, Done(request.sequence))

    def engage(self, letter: Engage) -> None:
        """Carry out a local client's part of a plan, or refuse it."""
        if self._decisions.is_active(letter.tx):
            return  # it is already decided
        session = self._sessions.get(letter.client)
        problem = self._away(letter, session)
        if session is None or problem:
            self.refuse(letter, problem)
            return
        targets, missing = self._targets(session, letter)
        if missing is None and self._must_wait(letter, session, targets):
            return
        local = self._participant.open(letter.tx, letter.timeout_s)
        part = self._participant.part(local, session.client, session.epoch)
        part.plan = replace(letter, steps=())
        size_bytes = _size_of(letter.steps)
        wrong = missing or self._unable(session, letter, part, targets, size_bytes)
        if wrong is not None:
            self.refuse(letter, f"{letter.client}: {wrong[0]}: {wrong[1]}")
            return
        part.size_bytes += size_bytes
        self._do(session, letter, part, targets)
        self._out.effects.followed.append((letter.tx, letter.client))

    def followed(self, tx: str, client: str) -> None:
        """What a plan has added for a client is in the tables."""
        local = self._participant.get(tx)
        part = local.parts.get(client) if local is not None else None
        if local is not None and part is not None:
            part.placed = True
            self.effective(local, client)

    def effective(self, local: Local, client: str) -> None:
        """Tell the root if all of a client's part of a plan is effective."""
        part = local.parts[client]
        plan = part.plan
        if plan is not None and part.placed and not part.pending:
            done = self._participant.contribution(local, client)
            told = Engaged(local.tx, done, plan.timeout_s, plan.cast, plan.key)
            self._courier.post(self._courier.root, told)

    def refuse(self, letter: Engage, reason: str) -> None:
        """The withdrawal is posted only once what other parts have added is in the tables: if we
        are the root, it aborts at once, and what is added later would stay."""
        told = Withdraw(letter.tx, self._courier.name, reason, letter.key)
        self._out.effects.refused.append(told)

    def refused(self, letter: Withdraw) -> None:
        self._courier.post(self._courier.root, letter)

    def _away(self, letter: Engage, session: Session | None) -> str:
        """Why a client's part is refused: it is not connected, or has not consented."""
        if session is None:
            return f"{letter.client} is not connected to {self._courier.name}"
        if not session.willing and op_of(letter.tx)[:2] != (session.client, session.epoch):
            text = f"{letter.client} does not take part in plans; use client.participate()"
            return f"{text}, or motet sub --participate"
        return ""

    # ── names in plans ───────────────────────────────────────────────────────────────────

    def _targets(self, session: Session, letter: Engage) -> tuple[list[int], Problem]:
        """The numbers of the operations to remove, in step order; or which is missing."""
        found: list[int] = []
        for step in letter.steps:
            if step.kind in ("unadvertise", "unsubscribe"):
                known = self._called(session, step.kind, step.name)
                here = [each for each in known if each not in found]
                if not here:
                    what = "is cancelled twice" if known else "is not in force"
                    return found, Objection("NoSuchOperation", f"{step.kind}: {step.name!r} {what}")
                found.append(here[0])
        return found, None

    def _called(self, session: Session, kind: str, name: str) -> list[int]:
        """A client's operations with this name, or, if they have none, with this filter. Those that
        end with a transaction, or may begin with one, come last."""
        table, client, epoch = self._table(kind), session.client, session.epoch
        named = (OpId(client, epoch, number) for number in self._sessions.named(session, name))
        found = [entry for op in named if (entry := table.get(op)) is not None]
        if not found:
            found = [
                entry
                for entry in table.from_source(Hop.client(client))
                if not session.names.get(entry.id.sequence) and str(entry.filter) == name
            ]
        retired, forsaken = self._tables.retired, self._versions.starts.forsaken
        there = [
            entry.id
            for entry in found
            if not entry.ended and entry.id not in retired and entry.id not in forsaken
        ]
        if len(there) > 1:
            unsettled, holder = self._versions.marks.unsettled, self._participant.holder
            there.sort(key=lambda op: (op in unsettled, bool(holder(op)), op))
        return [op.sequence for op in there]

    def _table(self, kind: str) -> Table:
        tables = self._tables
        return tables.advertisements if kind.endswith("advertise") else tables.subscriptions

    def _must_wait(self, letter: Engage, session: Session, targets: list[int]) -> bool:
        """Hold a part that removes what begins with an unsettled transaction."""
        if not targets:
            return False
        waits_for = self._decisions.beginning(
            OpId(session.client, session.epoch, n) for n in targets
        )
        if waits_for:
            self._participant.open(letter.tx, letter.timeout_s)
            op = OpId(session.client, session.epoch, 0)
            self._decisions.hold(Held(waits_for, op, letter))
        return bool(waits_for)

    # ── all of it, or none ───────────────────────────────────────────────────────────────

    def _unable(
        self,
        session: Session,
        letter: Engage,
        part: ClientPart,
        targets: list[int],
        size_bytes: int,
    ) -> Problem:
        """The first objection to a step of a part."""
        steps = letter.steps
        if part.version:
            return Objection(
                "TransactionOver", "this client, or an earlier session of it, has done its part"
            )
        if len(steps) > MOST_OPERATIONS or size_bytes > MOST_BYTES:
            text = f"the part of a client in a plan may have at most {MOST_OPERATIONS:,} steps"
            return Objection(
                "MisuseError", f"{text} and {MOST_BYTES:,} bytes; split it into several plans"
            )
        left = iter(targets)
        added: list[Filter] = []
        given_up: set[int] = set()
        for step in steps:
            problem: Problem = None
            if step.kind in ("subscribe", "unsubscribe"):
                problem = self._participant.unordered(session.client)
            if problem is not None:
                return problem
            if step.kind == "publish":
                problem = self._outside(session.client, letter.tx, step.body, added, given_up)
            elif step.kind in ("advertise", "subscribe") and step.filter is not None:
                problem = self._name_taken(session, step, targets)
                if step.kind == "advertise":
                    added.append(step.filter)
            elif step.kind in ("unadvertise", "unsubscribe"):
                target = OpId(session.client, session.epoch, next(left))
                problem = self._participant.held(target, letter.tx, repr(step.name))
                if step.kind == "unadvertise":
                    given_up.add(target.sequence)
            else:
                problem = Objection("MisuseError", f"unknown kind of step {step.kind!r}")
            if problem is not None:
                return problem
        return None

    def _name_taken(self, session: Session, step: Step, targets: list[int]) -> Problem:
        """In a durable session, a later process finds its operations by name."""
        if session.durable and any(
            number not in targets for number in self._called(session, step.kind, step.name)
        ):
            return Objection("NameTaken", f"{step.name!r} is already in force; use another name")
        return None

    def name_taken(self, session: Session, request: AdvertiseRequest | SubscribeRequest) -> Problem:
        """A plan may have used the name, or may be about to, unknown to the client."""
        if not session.durable:
            return None
        kind = "advertise" if isinstance(request, AdvertiseRequest) else "subscribe"
        if any(number > GRANTED for number in self._called(session, kind, request.name)):
            text = f"the name {request.name!r} is in use by a plan"
            return Objection("NameTaken", f"{text}; use another name")
        return None

    def _outside(
        self, client: str, tx: str, body: bytes, added: list[Filter], given_up: set[int]
    ) -> Problem:
        if not given_up and self._participant.is_plainly_advertised(client, body):
            return None
        attributes, problem = attributes_of(body)
        if problem is not None or any(filter.matches(attributes) for filter in added):
            return problem
        return self._participant.not_advertised(client, tx, attributes, given_up)

    def _do(self, session: Session, letter: Engage, part: ClientPart, targets: list[int]) -> None:
        left = iter(targets)
        part.version += len(letter.steps)
        for step in letter.steps:
            if step.kind == "publish":
                part.staged.append((step.order, Raw(step.body)))
                self._await_arrival(session, part, publishes=True)
            elif step.kind == "unadvertise":
                part.unadvertised[next(left)] = step.order
                self._await_arrival(session, part, publishes=False)
            elif step.kind == "unsubscribe":
                part.ended[next(left)] = step.order
            elif step.filter is not None:
                source = Hop.client(session.client)
                made = OpId(session.client, session.epoch, session.grant())
                self._out.effects.made.append((made, step.kind, step.name))
                if step.kind == "advertise":
                    part.advertised[made.sequence] = step.order
                    part.pending[made.sequence] = None
                    told = Advertise(made, step.filter, echo=True, tx=letter.tx)
                    self._out.route(told, source)
                else:
                    part.begun[made.sequence] = step.order
                    wanted = Subscribe(made, step.filter, tx=letter.tx)
                    self._out.route(wanted, source)

    def _await_arrival(self, session: Session, part: ClientPart, *, publishes: bool) -> None:
        if self._participant.arriving(session.client, session.epoch, publishes):
            part.pending[ARRIVING] = None


def _size_of(steps: tuple[Step, ...]) -> int:
    size = 0
    for step in steps:
        size += len(step.body)
        if step.filter is not None:
            size += len(step.filter.to_bytes())
    return size
