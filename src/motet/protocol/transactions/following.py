"""The parts of our clients in plans, done by us: all of a part, or none of it.

Who consents to plans need not be asked: what a plan takes back it calls by name, and we know the
names; what it adds gets numbers that no request has. So a client hears of its part only when it is
decided, and a part of a client that is away is done as well.

Nobody waits for subscriptions to be effective: a pubend cuts only when all that begin there have
come, and the decision is echoed only behind the cut. What an advertisement attracts must have come
before, so that is waited for.
"""

from __future__ import annotations

from msgspec import Raw
from msgspec.structs import replace

from motet.model import Filter, Hop, OpId
from motet.protocol.routing.messages import Advertise, Subscribe
from motet.protocol.routing.state import Table
from motet.protocol.session.messages import (
    AdvertiseRequest,
    ConsentRequest,
    Done,
    SubscribeRequest,
)
from motet.protocol.session.state import GRANTED, Session
from motet.protocol.transactions.effects import op_of
from motet.protocol.transactions.inviting import Inviting
from motet.protocol.transactions.messages import MOST_OPERATIONS, Engage, Engaged, Step, Withdraw
from motet.protocol.transactions.participating import (
    MOST_BYTES,
    Problem,
    attributes_of,
)
from motet.protocol.transactions.state import Held, Local, Part


class Following(Inviting):
    def consent(self, op: OpId, request: ConsentRequest) -> None:
        session = self.sessions.current(op.client, op.epoch)
        assert session is not None
        session.willing = True
        self._answer(op, Done(request.sequence))

    def engage(self, letter: Engage) -> None:
        """A client of ours has part in a plan."""
        if letter.tx in self.state.active:
            return  # the decision has overtaken it
        session = self.sessions.get(letter.client)
        problem = self._away(letter, session)
        if session is None or problem:
            self._refuse(letter, problem)
            return
        targets, missing = self._targets(session, letter)
        if missing is None and self._must_wait(letter, session, targets):
            return
        local = self._local(letter.tx, letter.timeout_s)
        part = self._own(local, session.client, session.epoch)
        part.plan = replace(letter, steps=())
        size_bytes = size_of(letter.steps)
        wrong = missing or self._unable(session, letter, part, targets, size_bytes)
        if wrong is not None:
            self._refuse(letter, f"{letter.client}: {wrong[0]}: {wrong[1]}")
            return
        part.size_bytes += size_bytes
        self._do(session, letter, part, targets)
        self._effects.followed.append((letter.tx, letter.client))

    def followed(self, tx: str, client: str) -> None:
        """What a client has added by a plan is in the tables."""
        local = self.state.locals.get(tx)
        part = local.parts.get(client) if local is not None else None
        if local is not None and part is not None:
            part.placed = True
            self._engaged_in(local, client)

    def _engaged_in(self, local: Local, client: str) -> None:
        """If all of it is effective, the root may know."""
        part = local.parts[client]
        plan = part.plan
        if plan is not None and part.placed and not part.pending:
            done = self.contribution(local, client)
            self._post(self.root, Engaged(local.tx, done, plan.timeout_s, plan.cast, plan.key))

    def _refuse(self, letter: Engage, reason: str) -> None:
        """If we are the root, it is aborted at once: not before what others have added is in the
        tables, or it would stay there."""
        self._effects.refused.append(Withdraw(letter.tx, self.name, reason, letter.key))

    def refused(self, letter: Withdraw) -> None:
        self._post(self.root, letter)

    def _away(self, letter: Engage, session: Session | None) -> str:
        """Why nothing can be done for a client."""
        if session is None:
            return f"{letter.client} is not connected to {self.name}"
        if not session.willing and op_of(letter.tx)[:2] != (session.client, session.epoch):
            text = f"{letter.client} takes part in no plans: await client.participate() lets it"
            return f"{text}, or motet sub --participate"
        return ""

    # ── what a plan calls by name ────────────────────────────────────────────────────────

    def _targets(self, session: Session, letter: Engage) -> tuple[list[int], Problem]:
        """The numbers of what is taken back, in the order of the steps; or what is not there."""
        found: list[int] = []
        for step in letter.steps:
            if step.kind in ("unadvertise", "unsubscribe"):
                known = self._called(session, step.kind, step.name)
                here = [each for each in known if each not in found]
                if not here:
                    what = "is taken back twice" if known else "is not in force"
                    return found, ("NoSuchOperation", f"{step.kind}: {step.name!r} {what}")
                found.append(here[0])
        return found, None

    def _called(self, session: Session, kind: str, name: str) -> list[int]:
        """What a client calls so. One that ends with a transaction, or perhaps begins with one, may
        have the same name: it comes last. What was given no name is called by its filter."""
        table = self._table(kind)
        ops = [
            OpId(session.client, session.epoch, number)
            for number in self.sessions.named(session, name)
        ]
        if not any(op in table for op in ops):
            own = table.from_source(Hop.client(session.client))
            ops = [
                entry.id
                for entry in own
                if not session.names.get(entry.id.sequence) and str(entry.filter) == name
            ]
        gone = (self.routing.retired, self.routing.forsaken)
        there = [
            op
            for op in ops
            if (entry := table.get(op)) is not None
            and not (entry.ended or any(op in each for each in gone))
        ]
        if len(there) > 1:
            there.sort(key=lambda op: (op in self.routing.unsettled, bool(self._holder(op)), op))
        return [op.sequence for op in there]

    def _table(self, kind: str) -> Table:
        routing = self.routing
        return routing.advertisements if kind.endswith("advertise") else routing.subscriptions

    def _must_wait(self, letter: Engage, session: Session, targets: list[int]) -> bool:
        """It takes back what begins with a transaction that is not settled."""
        if not targets:
            return False
        waits_for = self._beginning(OpId(session.client, session.epoch, n) for n in targets)
        if waits_for:
            self._local(letter.tx, letter.timeout_s)
            op = OpId(session.client, session.epoch, 0)
            self.state.held.append(Held(waits_for, op, letter))
        return bool(waits_for)

    # ── all of it, or none ───────────────────────────────────────────────────────────────

    def _unable(
        self, session: Session, letter: Engage, part: Part, targets: list[int], size_bytes: int
    ) -> Problem:
        """Why it cannot be done, whatever of it."""
        steps = letter.steps
        if part.version:
            return ("TransactionOver", "it has done its part before, or an earlier session of it")
        if len(steps) > MOST_OPERATIONS or size_bytes > MOST_BYTES:
            text = f"what a client does in one transaction has at most {MOST_OPERATIONS:,} steps"
            return ("MisuseError", f"{text} and {MOST_BYTES:,} bytes: make several plans of it")
        left = iter(targets)
        added: list[Filter] = []
        given_up: set[int] = set()
        for step in steps:
            problem: Problem = None
            if step.kind in ("subscribe", "unsubscribe"):
                problem = self._unordered(session.client)
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
                problem = self._held(target, letter.tx, repr(step.name))
                if step.kind == "unadvertise":
                    given_up.add(target.sequence)
            else:
                problem = ("MisuseError", f"a step of the kind {step.kind!r}")
            if problem is not None:
                return problem
        return None

    def _name_taken(self, session: Session, step: Step, targets: list[int]) -> Problem:
        """In a durable session, a later process finds things by their names."""
        if session.durable and any(
            number not in targets for number in self._called(session, step.kind, step.name)
        ):
            return ("NameTaken", f"{step.name!r} stands already: choose another name")
        return None

    def _taken_by_plan(self, op: OpId, request: AdvertiseRequest | SubscribeRequest) -> Problem:
        """A client does not know yet what a plan has put in force for it, or perhaps will."""
        session = self.sessions.current(op.client, op.epoch)
        if session is None or not session.durable or not session.granted:
            return None
        kind = "advertise" if isinstance(request, AdvertiseRequest) else "subscribe"
        if any(number > GRANTED for number in self._called(session, kind, request.name)):
            text = f"a plan has put something called {request.name!r} in force, or is about to"
            return ("NameTaken", f"{text}: choose another name")
        return None

    def _outside(
        self, client: str, tx: str, body: bytes, added: list[Filter], given_up: set[int]
    ) -> Problem:
        if not given_up and self._is_plainly_advertised(client, body):
            return None
        attributes, problem = attributes_of(body)
        if problem is not None or any(filter.matches(attributes) for filter in added):
            return problem
        return self._not_advertised(client, tx, attributes, given_up)

    def _do(self, session: Session, letter: Engage, part: Part, targets: list[int]) -> None:
        left = iter(targets)
        part.version += len(letter.steps)
        for step in letter.steps:
            if step.kind == "publish":
                part.staged.append((step.order, Raw(step.body)))
            elif step.kind == "unadvertise":
                part.unadvertised[next(left)] = step.order
            elif step.kind == "unsubscribe":
                part.ended[next(left)] = step.order
            elif step.filter is not None:
                source = Hop.client(session.client)
                made = OpId(session.client, session.epoch, session.grant())
                self._effects.made.append((made, step.kind, step.name))
                if step.kind == "advertise":
                    part.advertised[made.sequence] = step.order
                    part.pending[made.sequence] = None
                    told = Advertise(made, step.filter, echo=True, tx=letter.tx)
                    self._effects.routes.append((told, source))
                else:
                    part.begun[made.sequence] = step.order
                    wanted = Subscribe(made, step.filter, tx=letter.tx)
                    self._effects.routes.append((wanted, source))


def size_of(steps: tuple[Step, ...]) -> int:
    size = 0
    for step in steps:
        size += len(step.body)
        if step.filter is not None:
            size += len(step.filter.to_bytes())
    return size
