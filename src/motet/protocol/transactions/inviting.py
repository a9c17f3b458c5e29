"""Invitations: whom they reach, who has answered, and what all of them have contributed.

An invitation travels like an event, at once, whatever is decided later. Replies are nested: who has
passed one on replies when everybody behind it has.
"""

from __future__ import annotations

from motet.model import Hop, OpId
from motet.protocol.session.messages import AnswerRequest, Done, Invited, InviteRequest
from motet.protocol.transactions.messages import Invite, Reply
from motet.protocol.transactions.participating import (
    Participating,
    attributes_of,
    newest,
    too_large,
)
from motet.protocol.transactions.state import Asked, Invitation, Local, Read


class Inviting(Participating):
    def invite(self, op: OpId, request: InviteRequest) -> None:
        tx = request.tag.tx
        problem = self._stranger(op, request.tag, request) or self._unfit(op, request)
        if problem is not None:
            self._fail(op, *problem)
            return
        self._part(op, request.tag, request).invited.append(request.body)
        timeout_s = self.state.locals[tx].timeout_s
        isolated = tx in self.state.bases
        order = request.tag.order
        self._pass_on(Invite(tx, op, order, request.body, timeout_s, isolated), "")

    def _invited(self, invite: Invite, source: Hop) -> None:
        if invite.isolated and invite.tx not in self.state.bases:
            # Everybody knew of it before it could invite: the decision has overtaken it.
            told = Reply(invite.op, (), refusal="the transaction is over")
            self._send(source.name, told)
            return
        self._pass_on(invite, source.name)

    def _pass_on(self, invite: Invite, source: str) -> None:
        neighbours: dict[str, None] = {}
        clients: dict[str, list[int]] = {}
        own: list[OpId] = []
        attributes, problem = attributes_of(invite.body)
        for entry in self._readable(invite, attributes) if problem is None else ():
            if entry.tx:
                own.append(entry.id)
            if entry.source.is_broker and entry.source.name != source:
                neighbours[entry.source.name] = None
            elif not entry.source.is_broker and entry.id[:2] != invite.op[:2]:
                clients.setdefault(entry.source.name, []).append(entry.id.sequence)
        if invite.isolated:
            hops = (*sorted(neighbours), *(f"client {name}" for name in sorted(clients)))
            read = Read(invite.body, source, hops, tuple(own), invite.op)
            self.state.reads.setdefault(invite.tx, []).append(read)
        gone = [name for name in neighbours if name not in self.routing.bits.neighbours]
        for name in gone:  # it was one in the snapshot
            del neighbours[name]
        asked = Asked(invite.tx, invite.op, source, neighbours, dict.fromkeys(clients))
        asked.refusal = f"{gone[0]} is gone" if gone else ""
        self.state.asked[str(invite.op)] = asked
        self._effects.messages += [(neighbour, invite) for neighbour in neighbours]
        for client, subscriptions in clients.items():
            asked.reached += 1
            self._call_in(invite, client, tuple(subscriptions))
        self._conclude_asking(asked)

    def _call_in(self, invite: Invite, client: str, subscriptions: tuple[int, ...]) -> None:
        epoch = self.routing.clients.newest(client) or ""
        local = self._local(invite.tx, invite.timeout_s)
        self._own(local, client, epoch)
        order = f"{invite.order}/{client}"
        body = bytes(invite.body)
        invitation = Invitation(client, epoch, order, invite.op, body, subscriptions=subscriptions)
        local.invitations.append(invitation)
        told = Invited(invite.tx, invite.timeout_s, order, invite.op, body, subscriptions)
        self._effects.tell.append((client, told))

    def answer(self, op: OpId, request: AnswerRequest) -> None:
        """A client has done its part, or will not do it."""
        local = self.state.locals.get(request.tx)
        found = [
            each
            for each in (local.invitations if local is not None else ())
            if (each.client, each.epoch) == op[:2] and each.op == request.op and not each.answer
        ]
        if local is None or not found:
            text = f"{op.client} has no open invitation to transaction {request.tx}: it has"
            text += " answered before, or was not invited"
            self._fail(op, "NotInvited" if local is not None else "TransactionOver", text)
            return
        invitation = found[0]
        invitation.answer, invitation.refusal = op.sequence, request.refusal
        part = local.parts.get(op.client)
        if part is None or not part.pending or request.refusal:
            self._complete(local, invitation)

    def _complete(self, local: Local, invitation: Invitation) -> None:
        """All that a client did for an invitation is effective."""
        local.invitations.remove(invitation)
        invitation.refusal = invitation.refusal or local.refused
        client = invitation.client
        if invitation.answer:
            answer = OpId(client, invitation.epoch, invitation.answer)
            self._answer(answer, Done(answer.sequence))
        own = self.contribution(local, client)
        asked = self.state.asked.get(str(invitation.op))
        if asked is None:
            return
        asked.clients.pop(client, None)
        for each in (own, *local.gathered.values()):
            newest(asked.contributions, each)
        asked.refusal = asked.refusal or invitation.refusal
        self._conclude_asking(asked)

    def _replied(self, reply: Reply, source: Hop) -> None:
        asked = self.state.asked.get(str(reply.op))
        if asked is None or source.name not in asked.neighbours:
            return
        del asked.neighbours[source.name]
        for each in reply.contributions:
            newest(asked.contributions, each)
        asked.reached += reply.reached
        asked.refusal = asked.refusal or reply.refusal
        self._conclude_asking(asked)

    def _conclude_asking(self, asked: Asked) -> None:
        """Once everybody has replied, so do we: that is the nested acknowledgement."""
        if asked.neighbours or asked.clients:
            return
        del self.state.asked[str(asked.op)]
        large = too_large(asked.contributions.values())
        if large:
            asked.contributions, asked.refusal = {}, asked.refusal or large
        if asked.requester:
            told = tuple(asked.contributions.values())
            self._send(asked.requester, Reply(asked.op, told, asked.reached, asked.refusal))
            return
        local = self.state.locals.get(asked.tx)
        for each in asked.contributions.values():
            if local is not None:
                newest(local.gathered, each)
        if asked.refusal:
            if local is not None:
                local.refused = local.refused or asked.refusal
            self._fail(asked.op, "InvitationRefused", asked.refusal)
        else:
            self._answer(asked.op, Done(asked.op.sequence, str(asked.reached)))

    def open_invitations(self, client: str, epoch: str) -> list[Invited]:
        """For a client that comes back: what it was asked and has not answered."""
        return [
            Invited(
                *(local.tx, local.timeout_s, each.order, each.op),
                *(each.body, each.subscriptions),
            )
            for local in self.state.locals.values()
            for each in local.invitations
            if (each.client, each.epoch) == (client, epoch) and not each.answer
        ]
