"""The coordinator's broker: it spreads a plan, whose parts the root collects; what everybody has
contributed to a dynamic transaction it collects itself, and submits it to the root.

What became of a transaction is asked here too: the broker of its coordinator knows whether it is
still open, the root how it ended.
"""

from __future__ import annotations

from motet.model import OpId
from motet.model.epochs import broker_of
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.session.messages import (
    BeginRequest,
    Done,
    EndRequest,
    ExecuteRequest,
    OutcomeRequest,
)
from motet.protocol.transactions.effects import is_tx, op_of
from motet.protocol.transactions.following import Following
from motet.protocol.transactions.messages import (
    SAME_KEY,
    Ask,
    Effective,
    Engage,
    Open,
    Submit,
    Tell,
)
from motet.protocol.transactions.participating import QUESTION, newest, too_large
from motet.protocol.transactions.state import Coordination, Part

SHOWN_CHARS = 60
COMMITTED, ABORTED, RUNNING, EXPIRED = "committed", "aborted", "in progress", "expired"


class Collecting(Following):
    def _not_offered(self, op: OpId) -> bool:
        if self.root and self._neighbour_towards(self.root) is not None and self.routing.hosted:
            return False
        text = f"{self.name} offers no transactions: "
        if not self.routing.hosted:
            text += "it does not deliver exactly once"
        elif not self.root:
            text += "its overlay has no root. Those with cells or covering have none; else name one"
            text += " in the topology"
        else:
            text += f"it has no way to the root {self.root} now"
        self._fail(op, "NotOffered", text)
        return True

    def begin(self, op: OpId, request: BeginRequest) -> None:
        if self._not_offered(op):
            return
        tx = str(op)
        kind = "isolated" if request.isolated else "open"
        self.state.coordinations[tx] = Coordination(tx, kind, request.key)
        self._local(tx, request.timeout_s).parts[op.client] = Part(op.epoch)
        if request.isolated:
            self._post(self.root, Open(tx, request.timeout_s))
        else:
            self._answer(op, Done(op.sequence, tx))

    def execute(self, op: OpId, request: ExecuteRequest) -> None:
        if self._not_offered(op):
            return
        clients = self.routing.clients
        homes = {name: clients.newest(name) for name, _ in request.parts}
        unknown = [name for name, epoch in homes.items() if epoch is None]
        if unknown or not homes:
            who = ", ".join(unknown) or "nobody"
            text = f"the plan names {who}, and no such client is connected to the overlay"
            self._fail(op, "UnknownClient", text)
            return
        tx = str(op)
        self.state.coordinations[tx] = Coordination(tx, "static", request.key, op.sequence)
        self._local(tx, request.timeout_s)
        for client, steps in request.parts:
            letter = Engage(tx, client, steps, request.timeout_s, tuple(homes), request.key)
            self._post(broker_of(homes[client] or ""), letter)

    def end(self, op: OpId, request: EndRequest) -> None:
        """Commit or abort what a client of ours has begun."""
        coordination = self.state.coordinations.get(request.tx)
        local = self.state.locals.get(request.tx)
        if coordination is None or local is None or op_of(request.tx)[:2] != op[:2]:
            text = f"transaction {request.tx} is over, or was not begun by {op.client}"
            self._fail(op, "TransactionOver", text)
            return
        if coordination.request:
            self._fail(op, "TransactionOver", f"transaction {request.tx} is being ended already")
            return
        coordination.request = op.sequence
        if not request.commit:
            self.give_up(local, request.reason or "aborted by its coordinator")
            return
        part = local.parts.get(op.client)
        if (part is not None and part.pending) or self._unfinished(local):
            self.give_up(local, "it was committed before all of its operations were effective")
            return
        if local.refused:
            self.give_up(local, f"one of its invitations was refused: {local.refused}")
            return
        self._submit(coordination)

    def _submit(self, coordination: Coordination) -> None:
        coordination.submitted = True
        local = self.state.locals[coordination.tx]
        known = dict(local.gathered)
        newest(known, self.contribution(local, op_of(coordination.tx).client))
        large = too_large(known.values())
        if large:
            coordination.submitted = False
            self.give_up(local, large)
            return
        isolated = coordination.kind == "isolated"
        told = Submit(coordination.tx, tuple(known.values()), coordination.key, isolated)
        self._post(self.root, told)

    def _effective(self, letter: Effective) -> None:
        coordination = self.state.coordinations.get(letter.tx)
        if coordination is not None and coordination.outcome:
            self._report(coordination)

    def _report(self, coordination: Coordination, *, effective: bool = True) -> None:
        """The coordinator hears how it went: when it is effective wherever it concerns anybody, or
        has been committed for so long that somebody must be away, which is told apart."""
        del self.state.coordinations[coordination.tx]
        self._effects.timers.append(CancelTimer(("transaction", coordination.tx)))
        client, epoch, begin = op_of(coordination.tx)
        op = OpId(client, epoch, coordination.request or begin)
        if coordination.outcome == COMMITTED and not effective:
            active = self.state.active.get(coordination.tx)
            late = ", ".join(active.concerned) if active is not None else ""
            who = f"{late}, or a broker behind it," if late else "a broker that it concerns"
            text = f"transaction {coordination.tx} is committed, but {who} is away"
            self._fail(op, "StillSpreading", f"{text}: it takes effect there later")
        elif coordination.outcome == COMMITTED:
            self._answer(op, Done(op.sequence, coordination.tx))
        elif coordination.reason.startswith(SAME_KEY):
            known = coordination.reason.removeprefix(SAME_KEY)
            self._answer(op, Done(op.sequence, known))
        else:
            self._fail(op, "Aborted", coordination.reason)

    def ask(self, op: OpId, request: OutcomeRequest) -> None:
        if not is_tx(request.tx):
            text = f"{request.tx[:SHOWN_CHARS]!r} is not the name of a transaction: tx.id has it"
            self._fail(op, "MisuseError", text)
        elif request.tx in self.state.coordinations or request.tx in self.state.locals:
            self._answer(op, Done(op.sequence, RUNNING))
        elif not self._not_offered(op):
            self.state.questions[str(op)] = request.timeout_s
            at = self.now + request.timeout_s
            self._effects.timers.append(SetTimer(("transaction", f"{QUESTION}{op}"), at))
            home = self._home(request.tx)
            towards = self._neighbour_towards(home)
            asked = Ask(request.tx, op, self.name, reached=towards is not None)
            self._post(home if towards else self.root, asked)

    def _asked(self, letter: Ask) -> None:
        """The coordinator's broker knows whether it is still open, the root how it ended."""
        if letter.tx in self.state.coordinations or letter.tx in self.state.locals:
            self._post(letter.broker, Tell(letter.op, RUNNING))
        elif self.root == self.name:
            outcome = self._outcome(letter.tx)
            if outcome == EXPIRED and not letter.reached:  # there it may still be open
                outcome = ""
            self._post(letter.broker, Tell(letter.op, outcome))
        else:
            self._post(self.root, letter)

    def _outcome(self, tx: str) -> str:
        found = self.state.outcomes.get(tx)
        if found is not None:
            return COMMITTED if found.committed else ABORTED
        if tx in self.state.bases or tx in self.state.gatherings:
            return RUNNING
        if any(each.tx == tx for each in self.state.queue):
            return RUNNING
        return EXPIRED

    def _tell(self, letter: Tell) -> None:
        if self.state.questions.pop(str(letter.op), None) is not None:
            key = ("transaction", f"{QUESTION}{letter.op}")
            self._effects.timers.append(CancelTimer(key))
        if not letter.outcome:
            text = "the root does not know it, and the broker of its coordinator cannot be reached"
            self._fail(letter.op, "UnavailableError", f"{text}: ask again later")
            return
        self._answer(letter.op, Done(letter.op.sequence, letter.outcome))
