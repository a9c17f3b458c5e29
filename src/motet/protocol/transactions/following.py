"""A client's part of a plan, done in one step: all of it, or none.

The broker knows the steps since it has called the client, so the client only says which numbers its
own operations have. Nobody waits for subscriptions to be effective: a pubend cuts only when all
that begin there have come, and the decision is echoed only behind the cut. What an advertisement
attracts must have come before, so that is waited for.
"""

from __future__ import annotations

from msgspec import Raw

from motet.model import Filter, Hop, OpId
from motet.protocol.routing.messages import Advertise, Subscribe
from motet.protocol.session.messages import FollowRequest
from motet.protocol.transactions.inviting import Inviting
from motet.protocol.transactions.messages import Step
from motet.protocol.transactions.participating import (
    MOST_BYTES,
    MOST_OPERATIONS,
    Problem,
    attributes_of,
)
from motet.protocol.transactions.state import Invitation, Local, Part


class Following(Inviting):
    def follow(self, op: OpId, request: FollowRequest) -> None:
        local = self.state.locals.get(request.tx)
        invitation = self._planned(local, op) if local is not None else None
        if local is None or invitation is None:
            text = f"{op.client} has no open invitation to transaction {request.tx}"
            self._fail(op, "NotInvited" if local is not None else "TransactionOver", text)
            return
        part = self._own(local, op.client, op.epoch)
        problem = self._unable(op, request, part, invitation.steps)
        if problem is not None:
            invitation.refusal = f"{op.client}: {problem[0]}: {problem[1]}"
            self._fail(op, *problem)
            self._complete(local, invitation)
            return
        self._do(op, request, part, invitation.steps)
        invitation.answer = part.follow = op.sequence
        self._effects.followed.append((request.tx, op))

    def followed(self, tx: str, op: OpId) -> None:
        """What a client has added by a plan is in the tables."""
        local = self.state.locals.get(tx)
        for invitation in list(local.invitations) if local is not None else ():
            done = (invitation.client, invitation.epoch, invitation.answer) == op
            if local is not None and done and not local.parts[op.client].pending:
                self._complete(local, invitation)

    def _planned(self, local: Local, op: OpId) -> Invitation | None:
        for each in local.invitations:
            if each.op is None and (each.client, each.epoch) == op[:2] and not each.answer:
                return each
        return None

    def _unable(
        self, op: OpId, request: FollowRequest, part: Part, steps: tuple[Step, ...]
    ) -> Problem:
        """Why it cannot be done, whatever of it."""
        if part.epoch != op.epoch:
            text = f"an earlier session of {op.client}, which had part in it, is over"
            return ("TransactionOver", f"transaction {request.tx} is given up: {text}")
        additions = sum(step.kind in ("advertise", "subscribe") for step in steps)
        removals = sum(step.kind in ("unadvertise", "unsubscribe") for step in steps)
        if (additions, removals) != (request.additions, len(request.targets)):
            return ("MisuseError", "these are not the steps of the plan")
        if len(steps) > MOST_OPERATIONS or size_of(steps) > MOST_BYTES:
            text = f"what a client does in one transaction has at most {MOST_OPERATIONS:,} steps"
            return ("MisuseError", f"{text} and {MOST_BYTES:,} bytes: make several plans of it")
        targets = iter(request.targets)
        added: list[Filter] = []
        given_up: set[int] = set()
        for step in steps:
            problem: Problem = None
            if step.kind in ("subscribe", "unsubscribe"):
                problem = self._unordered(op)
            if problem is not None:
                return problem
            if step.kind == "publish":
                problem = self._outside(op, request.tx, step.body, part, added, given_up)
            elif step.kind == "advertise" and step.filter is not None:
                added.append(step.filter)
            elif step.kind in ("unadvertise", "unsubscribe"):
                target = next(targets)
                place = OpId(op.client, op.epoch, target)
                problem = self._not_in_force(place, step.kind, request.tx)
                if target in given_up:
                    problem = ("NoSuchOperation", f"{step.kind}: {step.name!r} is taken back twice")
                given_up.add(target)
            elif step.kind != "subscribe" or step.filter is None:
                problem = ("MisuseError", f"a step of the kind {step.kind!r}")
            if problem is not None:
                return problem
        return None

    def _outside(
        self,
        op: OpId,
        tx: str,
        body: bytes,
        part: Part,
        added: list[Filter],
        given_up: set[int],
    ) -> Problem:
        attributes, problem = attributes_of(body)
        if problem is not None or any(filter.matches(attributes) for filter in added):
            return problem
        return self._not_advertised(op, tx, attributes, {*part.unadvertised, *given_up})

    def _not_in_force(self, target: OpId, kind: str, tx: str) -> Problem:
        routing = self.routing
        table = routing.advertisements if kind == "unadvertise" else routing.subscriptions
        if target not in table or target in routing.retired:
            text = f"operation {target.sequence} of {target.client} is not in force"
            return ("NoSuchOperation", f"{kind}: {text}")
        return self._held(target, tx)

    def _do(self, op: OpId, request: FollowRequest, part: Part, steps: tuple[Step, ...]) -> None:
        number, targets = op.sequence - request.additions, iter(request.targets)
        source = Hop.client(op.client)
        part.version += len(steps)
        part.size_bytes += size_of(steps)
        for step in steps:
            if step.kind == "publish":
                part.staged.append((step.order, Raw(step.body)))
            elif step.kind == "unadvertise":
                part.unadvertised[next(targets)] = step.order
            elif step.kind == "unsubscribe":
                part.ended[next(targets)] = step.order
            elif step.filter is not None:
                made = OpId(op.client, op.epoch, number)
                number += 1
                self._effects.made.append((made, step.kind, step.name))
                if step.kind == "advertise":
                    part.advertised[made.sequence] = step.order
                    part.pending[made.sequence] = None
                    told = Advertise(made, step.filter, echo=True, tx=request.tx)
                    self._effects.routes.append((told, source))
                else:
                    part.begun[made.sequence] = step.order
                    wanted = Subscribe(made, step.filter, tx=request.tx)
                    self._effects.routes.append((wanted, source))


def size_of(steps: tuple[Step, ...]) -> int:
    return sum(
        len(step.body) + (len(step.filter.to_bytes()) if step.filter is not None else 0)
        for step in steps
    )
