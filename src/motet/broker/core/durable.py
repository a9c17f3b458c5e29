"""The durable half of a broker: state that survives a crash, changed only by facts.

`apply` reads nothing but this state and the fact. Replaying the same facts gives the same state and
the same outputs, numbered the same way. Each protocol's room defines what its facts do; this file
composes the rooms and passes the changes of one room to the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from motet.broker.core.image import parts_of, restore_from
from motet.broker.core.protocols import PROTOCOLS
from motet.broker.core.records import encode
from motet.errors import InvariantError
from motet.model import Hop
from motet.protocol.changes import Changes
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Change, Fact, SetTimer
from motet.protocol.delivery.durable import DurableDelivery
from motet.protocol.link.durable import DurableLinks
from motet.protocol.link.machine import Ledger
from motet.protocol.link.messages import ControlMessage
from motet.protocol.room import DurableRoom, Handler
from motet.protocol.routing.machine import Routing
from motet.protocol.session.durable import DurableSessions
from motet.protocol.session.machine import Sessions
from motet.protocol.sinks.durable import Sinks
from motet.protocol.transactions.machine import Transactions
from motet.protocol.transactions.state import Marks

R = TypeVar("R", bound=DurableRoom)


class Durable:
    config: BrokerConfig
    routing: Routing
    sessions: Sessions
    transactions: Transactions
    sinks: Sinks

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.now = 0.0
        self.heard: Mapping[str, int] = {}
        self.received = 0
        self.at_end: list[Callable[[], None]] = []
        self._changes = Changes()
        life = f"{config.name}-{config.incarnation}"
        self.marks = Marks()
        self.routing = Routing(life, config.neighbours, self.marks, covering=config.covering)
        self.sessions = Sessions(config.name, config.incarnation)
        root = "" if config.cells or config.mates or config.covering else config.root
        self.transactions = Transactions(
            config.name, root, self.routing, self.marks, self.sessions, clock=self
        )
        # Numbers are never reused, not even if the root loses its state.
        self.transactions.decisions.state.number = config.incarnation
        self.sinks = Sinks()
        self._compose()

    def _compose(self) -> None:
        self._made: dict[type[DurableRoom], DurableRoom] = {}
        self._makers = dict(each.durable for each in PROTOCOLS if each.durable is not None)
        self.rooms = tuple(self.room(kind) for kind in self._makers)
        self._settling = [r for r in self.rooms if type(r).settle is not DurableRoom.settle]
        self.requests = self.room(DurableSessions)
        self.delivery = self.room(DurableDelivery)
        self.links = self.room(DurableLinks)
        self._facts: dict[type, list[Handler]] = {}
        self._reactions: dict[type, list[Handler]] = {}
        self._messages: dict[type, Callable[[Any, Hop], None]] = {}
        for room in self.rooms:
            self._messages |= room.messages()
            for kind, handler in room.facts().items():
                self._facts.setdefault(kind, []).append(handler)
            for kind, handler in room.reactions().items():
                self._reactions.setdefault(kind, []).append(handler)

    def room(self, kind: type[R]) -> R:
        """The room of this kind; created at the first call."""
        found = self._made.get(kind)
        if found is None:
            found = self._made[kind] = self._makers[kind](self)
        assert isinstance(found, kind)
        return found

    @property
    def ledgers(self) -> dict[str, Ledger]:
        return self.links.ledgers

    # ── the door ─────────────────────────────────────────────────────────────────────────

    def apply(self, fact: Fact) -> Changes:
        """Apply a fact; returns the changes. The single entry point."""
        if fact.now < self.now:
            raise InvariantError(f"time ran backwards from {self.now} to {fact.now}")
        self.now = fact.now
        handlers = self._facts.get(type(fact.body))
        if handlers is None:
            raise InvariantError(f"{type(fact.body).__name__} is not a fact")
        for handle in handlers:
            handle(fact.body)
        at_end, self.at_end = self.at_end, []
        for do in at_end:
            do()
        self.settle()
        changes, self._changes = self._changes, Changes()
        return changes

    def replay(self, facts: Iterable[Fact]) -> None:
        """Apply facts without carrying out their outputs again: pending control is in the outboxes
        of links, and clients ask for their answers again."""
        state = self.routing.state
        with state.advertisements.catching_up(), state.subscriptions.catching_up():
            for fact in facts:
                self.apply(fact)

    def restore(self, parts: Iterable[Struct]) -> None:
        """Restore the state from an image. This broker must be empty."""
        restore_from(self, parts)

    def recover(self, now: float) -> list[SetTimer]:
        """Timers to set after a replay."""
        return [timer for room in self.rooms for timer in room.recover(now)]

    # ── for the rooms ────────────────────────────────────────────────────────────────────

    def route(self, message: ControlMessage, source: Hop) -> None:
        self._messages[type(message)](message, source)

    def carry(self, changes: Changes) -> None:
        for change in changes:  # not by `emit`: faster, as there are many
            for react in self._reactions.get(type(change), ()):
                react(change)
            self._changes.append(change)

    def emit(self, change: Change) -> None:
        for react in self._reactions.get(type(change), ()):
            react(change)
        self._changes.append(change)

    def settle(self) -> None:
        for room in self._settling:
            if room.unsettled:
                room.settle()

    # ── looking in ───────────────────────────────────────────────────────────────────────

    def digest(self) -> str:
        """A hash of all durable state; a replay must give the same.

        Without the outboxes, because acknowledgements shrink them at any time."""
        picture = hashlib.sha256()
        for part in parts_of(self, outboxes=False):
            picture.update(encode(part))
        return picture.hexdigest()

    def validate(self) -> None:
        for room in self.rooms:
            room.validate()
