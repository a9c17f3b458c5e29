"""The path of publications: match once, to a mask of hops, and pass the body on undecoded.

Soft code: it reads the routing tables and never changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Raw

from motet.errors import InvariantError, MotetError, NotAdvertised
from motet.model import Hop, check_attributes, decode_attributes
from motet.protocol.contract import Output
from motet.protocol.link.machine import Link
from motet.protocol.publication import Publication
from motet.protocol.routing.state import RoutingState
from motet.protocol.session.messages import Deliver, Delivery, Published, Refusal

if TYPE_CHECKING:
    from motet.broker.core import ClientSoft


KEPT_PLANS = 4096


class Plan(NamedTuple):
    """What one mask of hops means: neighbours, clients with one subscription, the others."""

    neighbours: tuple[str, ...]
    single: tuple[tuple[str, tuple[int, ...]], ...]
    several: frozenset[str]


class Router:
    def __init__(
        self, state: RoutingState, links: dict[str, Link], clients: dict[str, ClientSoft]
    ) -> None:
        self._state = state
        self._links = links
        self._clients = clients
        self._plans: dict[int, Plan] = {}
        self.delivered = 0
        self.forwarded = 0
        self.refused = 0

    def tables_changed(self) -> None:
        self._plans.clear()

    # ── in ───────────────────────────────────────────────────────────────────────────────

    def publish(self, client: str, first: int, bodies: list[Raw], out: Output) -> Published:
        """Events of a client of ours: checked against what it advertised, stamped, routed."""
        advertised = self._state.advertisements.index.hops
        own = self._state.bits.bit(Hop.client(client))
        batch: list[Publication] = []
        known: list[dict[str, object]] = []
        refused: list[Refusal] = []
        for sequence, body in enumerate(bodies, first):
            try:
                attributes = decode_attributes(body)
                check_attributes(attributes)
                if not advertised(attributes) & own:
                    raise NotAdvertised(self._not_advertised(client, attributes))
            except MotetError as error:
                refused.append(Refusal(sequence, type(error).__name__, str(error)))
                continue
            batch.append(Publication(client, sequence, body))
            known.append(attributes)
        self.refused += len(refused)
        if batch:
            self._route(batch, known, ~0, out)
        return Published(first + len(bodies) - 1, tuple(refused))

    def forward(self, batch: list[Publication], neighbour: str, out: Output) -> None:
        """Events from a neighbour: they never go back where they came from."""
        if not batch:
            return
        attributes = [decode_attributes(publication.body) for publication in batch]
        self._route(batch, attributes, ~self._state.bits.bit(Hop.broker(neighbour)), out)

    # ── out ──────────────────────────────────────────────────────────────────────────────

    def _route(
        self,
        batch: list[Publication],
        attributes: list[dict[str, object]],
        allowed: int,
        out: Output,
    ) -> None:
        hops = self._state.subscriptions.index.hops
        masks = [hops(each) & allowed for each in attributes]
        first = masks[0]
        if masks.count(first) == len(masks):
            if first:
                self._same_way(batch, attributes, self._plan(first), out)
            return
        onward: dict[str, list[Publication]] = {}
        local: dict[str, list[Delivery]] = {}
        for publication, each, mask in zip(batch, attributes, masks, strict=True):
            if not mask:
                continue
            plan = self._plan(mask)
            for neighbour in plan.neighbours:
                onward.setdefault(neighbour, []).append(publication)
            for client, subscriptions in plan.single:
                local.setdefault(client, []).append(Delivery(subscriptions, publication))
            if plan.several:
                for client, subscriptions in self._which(each, plan.several).items():
                    local.setdefault(client, []).append(Delivery(subscriptions, publication))
        for neighbour, publications in onward.items():
            self._send(neighbour, publications, out)
        for client, deliveries in local.items():
            self._deliver(client, deliveries, out)

    def _same_way(
        self,
        batch: list[Publication],
        attributes: list[dict[str, object]],
        plan: Plan,
        out: Output,
    ) -> None:
        """The common case: a whole batch goes to the same hops."""
        for neighbour in plan.neighbours:
            self._send(neighbour, batch, out)
        for client, subscriptions in plan.single:
            self._deliver(client, [Delivery(subscriptions, p) for p in batch], out)
        if plan.several:
            local: dict[str, list[Delivery]] = {}
            for publication, each in zip(batch, attributes, strict=True):
                for client, subscriptions in self._which(each, plan.several).items():
                    local.setdefault(client, []).append(Delivery(subscriptions, publication))
            for client, deliveries in local.items():
                self._deliver(client, deliveries, out)

    def _send(self, neighbour: str, batch: list[Publication], out: Output) -> None:
        self.forwarded += len(batch)
        self._links[neighbour].publish(batch, out)

    def _deliver(self, client: str, batch: list[Delivery], out: Output) -> None:
        soft = self._clients[client]
        if not soft.connection:
            soft.lost += len(batch)
            return
        self.delivered += len(batch)
        out.deliver.append((soft.connection, Deliver(batch)))

    # ── plans ────────────────────────────────────────────────────────────────────────────

    def _plan(self, mask: int) -> Plan:
        plan = self._plans.get(mask)
        if plan is None:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.clear()
            plan = self._plans[mask] = self._make_plan(mask)
        return plan

    def _make_plan(self, mask: int) -> Plan:
        table = self._state.subscriptions
        neighbours, single, several = [], [], []
        for hop in self._state.bits.hops(mask):
            if hop.is_broker:
                neighbours.append(hop.name)
            elif table.count(hop) == 1:
                single.append((hop.name, (table.from_source(hop)[0].id.sequence,)))
            else:
                several.append(hop.name)
        return Plan(tuple(neighbours), tuple(single), frozenset(several))

    def _which(
        self, attributes: dict[str, object], clients: frozenset[str]
    ) -> dict[str, tuple[int, ...]]:
        """For clients with several subscriptions: which of them match."""
        table = self._state.subscriptions
        found: dict[str, tuple[int, ...]] = {}
        for key in table.index.match(attributes):
            entry = table.entry(key)
            if not entry.source.is_broker and entry.source.name in clients:
                name = entry.source.name
                found[name] = (*found.get(name, ()), entry.id.sequence)
        return found

    def _not_advertised(self, client: str, attributes: dict[str, object]) -> str:
        own = self._state.advertisements.from_source(Hop.client(client))
        space = " or ".join(f"({entry.filter})" for entry in own[:3]) or "nothing"
        more = f" or {len(own) - 3} more" if len(own) > 3 else ""
        shown = ", ".join(f"{name}={value!r}" for name, value in list(attributes.items())[:8])
        return f"{client} advertised {space}{more}; the event {{{shown}}} lies outside"

    def validate(self) -> None:
        for mask in self._plans:
            if self._plans[mask] != self._make_plan(mask):
                raise InvariantError("a cached plan is out of date")
