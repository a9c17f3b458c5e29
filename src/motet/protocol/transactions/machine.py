"""The transaction machine of one broker: every door returns what follows.

    clients of ours:  request, objection, hold, note, effective, left, open_invitations
    plans:            engage, followed, refused
    neighbours:       receive (by the table `MOVES`), normalised, forget, join, dismiss
    pubend:           due, cut, cut_told, logged, staging
    time:             overdue, recover

One door: state changes only while a journaled fact is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from motet.errors import InvariantError
from motet.model import Hop, OpId
from motet.protocol.contract import SetTimer
from motet.protocol.session.messages import (
    AnswerRequest,
    BeginRequest,
    ConsentRequest,
    EndRequest,
    ExecuteRequest,
    InviteRequest,
    OutcomeRequest,
    StageRequest,
    TxRequest,
)
from motet.protocol.transactions.deciding import Deciding
from motet.protocol.transactions.messages import (
    Ask,
    Decide,
    Echoed,
    Effective,
    Engage,
    Engaged,
    Invite,
    Letter,
    LetterBody,
    Open,
    Opening,
    Prepare,
    Query,
    Reply,
    Settle,
    Submit,
    Tell,
    TxMessage,
    Verdict,
    Withdraw,
)
from motet.protocol.transactions.participating import GRACE_S, QUESTION, WATCH


class Transactions(Deciding):
    def request(self, op: OpId, request: TxRequest) -> None:
        REQUESTS[type(request)](self, op, request)

    def receive(self, message: TxMessage, source: Hop) -> None:
        MOVES[type(message)](self, message, source)

    def _read(self, body: LetterBody) -> None:
        LETTERS[type(body)](self, body)

    def dismiss(self, neighbour: str) -> None:
        """It is no neighbour any more, so no decision waits for it."""
        self.forget(neighbour)
        for active in list(self.state.active.values()):
            active.missing.pop(neighbour, None)
            active.concerned.pop(neighbour, None)
            self.progress(active)

    def forget(self, neighbour: str) -> None:
        """A neighbour has lost its state, or was given up: nobody waits for its answers; what was
        read behind it, nobody can validate. But a decision concerns those behind it, too, and is
        told again when it is back: see `join`."""
        for flood in list(self.state.floods.values()):
            if neighbour in flood.missing:
                del flood.missing[neighbour]
                if flood.what == "prepare":
                    flood.objection = flood.objection or f"{neighbour} is gone: run it again"
                self._ebb(flood)
        for asked in list(self.state.asked.values()):
            if neighbour in asked.neighbours:
                del asked.neighbours[neighbour]
                asked.refusal = asked.refusal or f"{neighbour} is gone"
                self._conclude_asking(asked)
            elif asked.requester == neighbour:
                self.state.asked.pop(str(asked.op), None)

    def join(self, neighbour: str) -> None:
        """A link begins anew: decisions that are on their way are told again, and those that we
        wait for from there are asked for. So is what we began to ask when the old one went. The
        root hears what it has told us: it may have lost that."""
        for active in self.state.active.values():
            if neighbour == self.root and not active.late:
                self._send(neighbour, active.decide)
            elif active.source != neighbour and not active.late:
                active.missing[neighbour] = None
                active.concerned[neighbour] = None
                self._send(neighbour, active.decide)
        for flood in self.state.floods.values():
            if neighbour in flood.missing:
                opening = flood.what == "opening"
                self._send(neighbour, Opening(flood.tx) if opening else Prepare(flood.tx))
        for tx in self._awaited():
            self._effects.timers.append(SetTimer(("transaction", tx), self.now + GRACE_S))
        for local in self.state.locals.values():
            if local.withdrawn:
                self._post(self.root, Withdraw(local.tx, self.name, "given up before"))

    def recover(self, now: float) -> list[SetTimer]:
        """Timers after a restart: time begins again in full."""
        open_ones = {local.tx: local.timeout_s for local in self.state.locals.values()}
        asked = {f"{QUESTION}{op}": wait_s for op, wait_s in self.state.questions.items()}
        waits_s = {tx: each.timeout_s for tx, each in self.state.gatherings.items()}
        watched = {
            f"{WATCH}{tx}": wait_s + 2 * GRACE_S
            for tx, wait_s in (self.state.opened | waits_s).items()
        }
        waiting = (*self.state.coordinations, *self._awaited())
        decided = {tx: GRACE_S for tx in waiting if tx not in open_ones}
        return [
            SetTimer(("transaction", tx), now + wait_s)
            for tx, wait_s in (watched | open_ones | decided | asked).items()
        ]

    def validate(self) -> None:
        for tx, active in self.state.active.items():
            if active.decide.tx != tx:
                raise InvariantError(f"{tx} is decided under another name")
        for tx, local in self.state.locals.items():
            if tx in self.state.active:
                raise InvariantError(f"{tx} is decided, but still open for {list(local.parts)}")


REQUESTS: dict[type, Callable[[Transactions, OpId, Any], None]] = {
    BeginRequest: Transactions.begin,
    ExecuteRequest: Transactions.execute,
    StageRequest: Transactions.stage,
    InviteRequest: Transactions.invite,
    AnswerRequest: Transactions.answer,
    ConsentRequest: Transactions.consent,
    EndRequest: Transactions.end,
    OutcomeRequest: Transactions.ask,
}

MOVES: dict[type, Callable[[Transactions, Any, Hop], None]] = {
    Letter: Transactions._forward,
    Invite: Transactions._invited,
    Reply: Transactions._replied,
    Opening: Transactions._opening,
    Prepare: Transactions._prepare,
    Decide: Transactions._decided,
    Echoed: Transactions._echoed,
    Settle: Transactions._settle,
}

LETTERS: dict[type, Callable[[Transactions, Any], None]] = {
    Engage: Transactions.engage,
    Engaged: Transactions._engaged,
    Open: Transactions._open,
    Submit: Transactions._submitted,
    Withdraw: Transactions._withdrawn,
    Query: Transactions._queried,
    Verdict: Transactions._verdict,
    Ask: Transactions._asked,
    Tell: Transactions._tell,
    Effective: Transactions._effective,
}
"""Who takes which message, and what it does. Every message is legal in every state: a late one
finds nothing and changes nothing."""
