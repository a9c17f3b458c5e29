"""The routing tables as the delivery machine sees them: filters, neighbours and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from motet.model import Hop, OpId
from motet.model.ids import LAST_TICK
from motet.protocol.delivery.spans import (
    CutRecord,
    PredecessorRecord,
    Record,
    StartRecord,
    ops_of,
)
from motet.protocol.publication import Publication

if TYPE_CHECKING:
    from motet.protocol.link.machine import Link
    from motet.protocol.routing.machine import Routing
    from motet.protocol.routing.soft import Router


class Way(NamedTuple):
    """The hops of a mask, in a fixed order: neighbours, clients with one subscription and its
    sequence, clients with several subscriptions."""

    neighbours: tuple[str, ...]
    single: tuple[tuple[str, tuple[int, ...]], ...]
    several: tuple[str, ...]


class Interest(Protocol):
    """Answers are valid until the tables change; an implementation should cache `way`."""

    def masks(self, batch: list[Publication]) -> list[int]:
        """For each publication the hops (neighbours and clients) with a matching subscription."""

    def record_mask(self, record: Record) -> int:
        """The sources of the record's subscriptions; for some records all interested neighbours."""

    def is_ours(self, op: OpId) -> bool:
        """Is it the subscription of a client of this broker?"""

    def stands(self, record: StartRecord) -> bool:
        """Is this start at a hosted pubend still valid? It ends with its advertisement."""

    def lapsed(self, op: OpId, pubend: str) -> int:
        """Starts of one of this broker's subscriptions at a pubend are void up to this tick."""

    def end_of(self, op: OpId, pubend: str) -> int:
        """The last tick owed to a subscription: `LAST_TICK` unless a transaction ended it."""

    def way(self, mask: int) -> Way: ...

    def subscriptions_of(self, publication: Publication, client: str) -> tuple[int, ...]:
        """Sequences of a client's matching subscriptions."""

    def bit(self, neighbour: str) -> int:
        """The bit of a neighbour, also for one member of a neighbouring cell (`cell/member`)."""

    def client_bit(self, client: str) -> int: ...

    def neighbours(self) -> Sequence[str]: ...

    def upstream(self, pubend: str) -> str | None:
        """The neighbour towards the pubend's broker; None if hosted here, or unknown."""

    def pass_all(self) -> int:
        """Neighbours that get everything because not all interest is restored; 0 if it is. Until
        then nothing is acknowledged."""

    def wants(self, neighbour: str) -> bool:
        """Does this broker know any subscription of the neighbour?"""

    def pinned(self, pubend: str) -> int:
        """Nothing above this tick may be acknowledged, because a client on its way needs it."""


class Interests:
    def __init__(self, routing: Routing, links: Mapping[str, Link], router: Router) -> None:
        self._state = routing.state
        self._starts = routing.starts
        self._forsaken = routing.starts.forsaken
        self._links = links
        self._router = router
        self.pins: Mapping[str, int] = {}
        """See `pinned`, by pubend."""

    def masks(self, batch: list[Publication]) -> list[int]:
        hops = self._state.subscriptions.index.hops_encoded
        return [hops(each.body) or 0 for each in batch]

    def record_mask(self, record: Record) -> int:
        if isinstance(record, PredecessorRecord):
            return self._interested() if record.predecessors else 0
        mask, state = 0, self._state
        for op in ops_of(record):
            entry = state.subscriptions.entries.get(op)
            if entry is not None and op not in self._forsaken:
                mask |= 1 << state.bits.numbers[entry.source]
        if isinstance(record, CutRecord) and (record.last > record.tick or self._misses(record)):
            # A receiver of events of the block, from any of its pubends, must know where it lies.
            # An ended subscription unknown here may still be in effect at its client's broker.
            mask |= self._interested()
        return mask

    def _interested(self) -> int:
        mask = 0
        for neighbour in self._links:
            if self.wants(neighbour):
                mask |= self.bit(neighbour)
        return mask

    def _misses(self, cut: CutRecord) -> bool:
        known = self._state.subscriptions.entries
        return any(ended and op not in known for op, _, ended in cut.switches)

    def is_ours(self, op: OpId) -> bool:
        entry = self._state.subscriptions.entries.get(op)
        if entry is None or op in self._forsaken:
            return False
        return entry.source.name == op.client and entry.source.kind == "client"

    def stands(self, record: StartRecord) -> bool:
        entry = self._state.subscriptions.entries.get(record.op)
        if entry is None:  # it may return and continue from there
            return self._starts.lost.get(record.op, (0, ""))[0] == record.tick
        return entry.start == record.tick

    def lapsed(self, op: OpId, pubend: str) -> int:
        return self._starts.lapsed_upto(op, pubend)

    def end_of(self, op: OpId, pubend: str) -> int:
        known = self._starts.ends.get(op)
        return known.get(pubend, LAST_TICK) if known is not None else LAST_TICK

    def way(self, mask: int) -> Way:
        return self._router.plans.get(mask) or self._router.plan(mask)

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
        everybody = state.bits.all_neighbours
        return everybody if state.waits.probes or everybody & ~state.complete else 0

    def wants(self, neighbour: str) -> bool:
        return self._state.subscriptions.count(Hop.broker(neighbour)) > 0

    def pinned(self, pubend: str) -> int:
        return self.pins.get(pubend, LAST_TICK) if self.pins else LAST_TICK
