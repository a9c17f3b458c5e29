"""The durable half of hosting: checkpoints, and what moves with a hosted client's session."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from msgspec import Struct, msgpack

from motet.errors import InvariantError
from motet.protocol.changes import SessionClosed, SessionDeparted
from motet.protocol.hosted.facts import CheckpointMade, HostingBegun
from motet.protocol.hosted.state import HostedClient, MovingHosted
from motet.protocol.room import DurableRoom, Handler
from motet.protocol.session.machine import Sessions


class DurableHosted(DurableRoom):
    name = "hosted"
    moving = MovingHosted

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.hosted: dict[str, HostedClient] = {}
        """By client whose session is here."""

    def facts(self) -> Mapping[type, Handler]:
        return {HostingBegun: self._begun, CheckpointMade: self._checkpoint}

    def reactions(self) -> Mapping[type, Handler]:
        return {SessionClosed: self._over, SessionDeparted: self._over}

    def image(self) -> bytes:
        return msgpack.encode(self.hosted) if self.hosted else b""

    def restore(self, image: bytes) -> None:
        self.hosted = msgpack.decode(image, type=dict[str, HostedClient])

    def hand_out(self, client: str, epoch: str) -> MovingHosted | None:
        found = self.current(client, epoch)
        return None if found is None else MovingHosted(deepcopy(found))

    def fits(self, client: str, epoch: str, part: Struct) -> bool:
        del client
        if not isinstance(part, MovingHosted) or part.client.epoch != epoch:
            return False
        return part.client.number >= 0 and len(part.client.outputs) <= part.client.last

    def take_in(self, client: str, epoch: str, part: Struct) -> None:
        assert isinstance(part, MovingHosted)
        assert part.client.epoch == epoch
        self.hosted[client] = deepcopy(part.client)

    def validate(self) -> None:
        for client, each in self.hosted.items():
            if self._sessions.current(client, each.epoch) is None:
                raise InvariantError(f"{client} is hosted, but has no session {each.epoch} here")
            if each.last < len(each.outputs):
                raise InvariantError(f"{client} has more outputs than it ever published")

    def current(self, client: str, epoch: str) -> HostedClient | None:
        found = self.hosted.get(client)
        return found if found is not None and found.epoch == epoch else None

    def _begun(self, fact: HostingBegun) -> None:
        self.hosted[fact.client] = HostedClient(fact.epoch, last=fact.last)

    def _checkpoint(self, fact: CheckpointMade) -> None:
        hosted = self.current(fact.client, fact.epoch)
        session = self._sessions.current(fact.client, fact.epoch)
        if hosted is None or session is None:
            raise InvariantError(f"the journal has a checkpoint of {fact.client}, who is not here")
        hosted.keep(fact.checkpoint)
        session.note(fact.checkpoint.cursors)

    def _over(self, news: SessionClosed | SessionDeparted) -> None:
        if self.current(news.client, news.epoch) is not None:
            del self.hosted[news.client]
