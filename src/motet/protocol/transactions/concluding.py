"""A decision has come: what clients of ours did takes effect, or is withdrawn, and they hear of it.

Whoever asked for its own part hears how it went. Of a plan, whose parts we have done, a client
hears only if it is committed, and then what has begun and ended for it.
"""

from __future__ import annotations

from typing import Literal

from motet.model import Hop, OpId
from motet.protocol.contract import CancelTimer
from motet.protocol.routing.messages import Unadvertise, Unsubscribe
from motet.protocol.session.messages import Decided, Over, Stands
from motet.protocol.session.state import Session
from motet.protocol.transactions.cutting import Cutting
from motet.protocol.transactions.messages import Decide, Engage
from motet.protocol.transactions.state import Local, Part


class Concluding(Cutting):
    def _finish(self, local: Local, decide: Decide) -> None:
        """What clients of ours did takes effect, or is withdrawn, last first."""
        for client, part in local.parts.items():
            if decide.committed:
                self._take_effect(client, part)
            else:
                self._withdraw(client, part)
        told = Decided(decide.tx, decide.number, decide.committed, decide.reason)
        for client, part in local.parts.items():
            session = self.sessions.current(client, part.epoch)
            if session is None:
                continue  # the numbers of a session before are those of other operations now
            if part.plan is not None:
                if decide.committed:
                    self._effects.tell.append((client, self._with_changes(told, session, part)))
                continue  # else it has never heard of it
            self._effects.tell.append((client, told))
            if not decide.committed:  # for a process that does not know what an earlier one did
                gone = (*part.begun, *part.advertised)
                self._effects.tell += [(client, Over(number)) for number in sorted(gone)]
        over = decide.reason or "the transaction was decided"
        for each in local.invitations:
            if each.answer:  # what it has done was not effective yet
                self._fail(OpId(each.client, each.epoch, each.answer), "Aborted", over)
        if self.state.held:
            self.state.held = [
                each
                for each in self.state.held
                if not isinstance(each.request, Engage) or each.request.tx != decide.tx
            ]
        for asked in [each for each in self.state.asked.values() if each.tx == decide.tx]:
            if not asked.requester:
                self._fail(asked.op, "Aborted", over)
        self._effects.timers.append(CancelTimer(("transaction", decide.tx)))
        self._effects.moved_on = True

    def _with_changes(self, told: Decided, session: Session, part: Part) -> Decided:
        """What a client must know of its part, which we have done."""
        added: list[Stands] = []
        for number in sorted((*part.begun, *part.advertised)):
            op = OpId(session.client, part.epoch, number)
            kind: Literal["advertise", "subscribe"] = "advertise"
            entry = self.routing.advertisements.get(op)
            if number in part.begun:
                kind, entry = "subscribe", self.routing.subscriptions.get(op)
            if entry is not None:
                added.append(Stands(number, kind, session.names.get(number, ""), entry.filter))
        ended = (*part.ended, *part.unadvertised)
        return Decided(told.tx, told.number, True, "", tuple(added), ended)

    def _take_effect(self, client: str, part: Part) -> None:
        for number in part.unadvertised:
            target = OpId(client, part.epoch, number)
            self._forget_name(target)
            if target in self.routing.advertisements and target not in self.routing.retired:
                self._effects.routes.append((Unadvertise(target), Hop.client(client)))
        for number in part.ended:
            target = OpId(client, part.epoch, number)
            if target in self.routing.subscriptions:
                self._effects.ending.append(target)

    def _withdraw(self, client: str, part: Part) -> None:
        source = Hop.client(client)
        for number in sorted((*part.begun, *part.advertised), reverse=True):
            target = OpId(client, part.epoch, number)
            self._forget_name(target)
            if target in self.routing.subscriptions:
                self._effects.routes.append((Unsubscribe(target), source))
            elif target in self.routing.advertisements and target not in self.routing.retired:
                self._effects.routes.append((Unadvertise(target), source))

    def _forget_name(self, target: OpId) -> None:
        session = self.sessions.current(target.client, target.epoch)
        if session is not None:
            self.sessions.forget(session, target.sequence)
