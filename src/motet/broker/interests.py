"""What the delivery machine wants to know of the routing tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from motet.broker.router import Router
from motet.model import Hop, OpId
from motet.model.ticks import LAST_TICK
from motet.protocol.delivery.interest import Way
from motet.protocol.delivery.spans import CutRecord, Record, StartRecord, ops_of
from motet.protocol.link.machine import Link
from motet.protocol.publication import Publication
from motet.protocol.routing.state import RoutingState


class Interests:
    def __init__(self, state: RoutingState, links: Mapping[str, Link], router: Router) -> None:
        self._state = state
        self._links = links
        self._router = router

    def masks(self, batch: list[Publication]) -> list[int]:
        hops = self._state.subscriptions.index.hops_encoded
        return [hops(each.body) or 0 for each in batch]

    def record_mask(self, record: Record) -> int:
        mask = 0
        for op in ops_of(record):
            mask |= self.op_mask(op)
        if isinstance(record, CutRecord) and (record.last > record.tick or self._misses(record)):
            # Who gets events of a block, or of another pubend's block, must know where it is. And
            # one that has ended, and is not here now, may still stand where its client is.
            for neighbour in self._links:
                if self.wants(neighbour):
                    mask |= self.bit(neighbour)
        return mask

    def _misses(self, cut: CutRecord) -> bool:
        known = self._state.subscriptions
        return any(ended and op not in known for op, _, ended in cut.switches)

    def op_mask(self, op: OpId) -> int:
        entry = self._state.subscriptions.get(op)
        if entry is None or op in self._state.forsaken:
            return 0
        return self._state.bits.bit(entry.source)

    def stands(self, record: StartRecord) -> bool:
        entry = self._state.subscriptions.get(record.op)
        if entry is None:  # it may come again, and go on from there
            return self._state.lost_starts.get(record.op, (0, ""))[0] == record.tick
        return entry.start == record.tick

    def lapsed(self, op: OpId, pubend: str) -> int:
        return self._state.lapsed_upto(op, pubend)

    def end_of(self, op: OpId, pubend: str) -> int:
        known = self._state.ends.get(op)
        return known.get(pubend, LAST_TICK) if known is not None else LAST_TICK

    def way(self, mask: int) -> Way:
        return self._router.plan(mask)

    def subscriptions_of(self, publication: Publication, client: str) -> tuple[int, ...]:
        return self._router.subscriptions_of(publication, client)

    def bit(self, neighbour: str) -> int:
        cell, _, _ = neighbour.partition("/")  # a member of a cell wants what its cell wants
        return self._state.bits.bit(Hop.broker(cell))

    def client_bit(self, client: str) -> int:
        return self._state.bits.bit(Hop.client(client))

    def neighbours(self) -> Sequence[str]:
        return tuple(self._links)

    def upstream(self, pubend: str) -> str | None:
        hop = self._state.pubends.get(pubend)
        return hop.name if hop is not None and hop.is_broker else None

    def pass_all(self) -> int:
        state = self._state
        return state.bits.all_neighbours if state.unsure else 0

    def wants(self, neighbour: str) -> bool:
        return self._state.subscriptions.count(Hop.broker(neighbour)) > 0
