"""The durable half of all links of a broker: their ledgers, and the set of neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from motet.model import Hop
from motet.protocol.changes import (
    NeighbourAdmitted,
    NeighbourDismissed,
    NeighbourForgotten,
    NeighbourJoined,
    Sent,
)
from motet.protocol.image import HeadImage, chunked
from motet.protocol.link.facts import (
    ControlReceived,
    NeighbourLost,
    NeighbourMet,
    NeighboursChanged,
)
from motet.protocol.link.machine import Ledger, LedgersImage, OutboxImage
from motet.protocol.room import Bus, DurableRoom, Handler
from motet.protocol.routing.machine import Routing


class DurableLinks(DurableRoom):
    def __init__(self, bus: Bus, neighbours: tuple[str, ...], life: int, routing: Routing) -> None:
        self._bus = bus
        self._routing = routing
        self.lives = life
        """The highest life that any of our links has had. None is reused, not even for a neighbour
        that was removed and added again."""
        self.ledgers = {name: Ledger(name, self.lives) for name in sorted(neighbours)}

    def facts(self) -> Mapping[type, Handler]:
        return {
            ControlReceived: self._control_received,
            NeighbourMet: self._neighbour_met,
            NeighbourLost: self._neighbour_lost,
            NeighboursChanged: self._neighbours_changed,
        }

    def reactions(self) -> Mapping[type, Handler]:
        return {Sent: self._enqueue}

    def parts(self) -> Mapping[type[Struct], Iterable[Any]]:
        return {
            HeadImage: [{"lives": self.lives}],
            LedgersImage: [LedgersImage(tuple(each.record for each in self.ledgers.values()))],
            OutboxImage: self._outboxes(),
        }

    def _outboxes(self) -> Iterator[OutboxImage]:
        for neighbour, ledger in self.ledgers.items():
            for rows in chunked(tuple, ledger.outbox):
                yield OutboxImage(neighbour, rows[0][0], tuple(message for _, message in rows))

    def takers(self) -> Mapping[type[Struct], Handler]:
        return {
            HeadImage: self._take_head,
            LedgersImage: self._take_ledgers,
            OutboxImage: self._take_outbox,
        }

    def _take_head(self, head: HeadImage) -> None:
        self.lives = head.lives

    def _take_ledgers(self, part: LedgersImage) -> None:
        self.ledgers = {record.neighbour: Ledger.restored(record) for record in part.records}

    def _take_outbox(self, part: OutboxImage) -> None:
        self.ledgers[part.neighbour].outbox.extend(enumerate(part.messages, part.first))

    def _enqueue(self, sent: Sent) -> None:
        self.ledgers[sent.neighbour].enqueue(sent.message)

    def _control_received(self, fact: ControlReceived) -> None:
        fresh = self.ledgers[fact.neighbour].take(fact.control)
        source = Hop.broker(fact.neighbour)
        self._routing.starts.advance(fact.tick)
        self._routing.obligations.rechecks = fact.rechecks
        self._routing.joins.recalls = fact.recalls
        self._bus.heard = fact.heard
        self._bus.received = self.ledgers[fact.neighbour].record.received
        for message in fresh:
            self._bus.route(message, source)

    def _neighbour_met(self, fact: NeighbourMet) -> None:
        self._routing.joins.recalls = fact.recalls
        self._bus.emit(NeighbourForgotten(fact.neighbour, empty=True))
        self._bus.settle()
        self.ledgers[fact.neighbour].restart(fact.incarnation)
        self._bus.emit(NeighbourJoined(fact.neighbour))

    def _neighbour_lost(self, fact: NeighbourLost) -> None:
        self._routing.joins.recalls = fact.recalls
        self._bus.emit(NeighbourForgotten(fact.neighbour, empty=False))
        self._bus.settle()
        self.lives += 1
        self.ledgers[fact.neighbour].lose(self.lives)

    def _neighbours_changed(self, fact: NeighboursChanged) -> None:
        before, after = self.ledgers, set(fact.neighbours)
        for neighbour in [name for name in before if name not in after]:
            self._bus.emit(NeighbourDismissed(neighbour))
            del self.ledgers[neighbour]
        for neighbour in sorted(after - set(before)):
            self.lives += 1
            self.ledgers[neighbour] = Ledger(neighbour, self.lives)
            self._bus.emit(NeighbourAdmitted(neighbour))
        self.ledgers = dict(sorted(self.ledgers.items()))
