"""The path of publications: match once, to a mask of hops, and pass the body on undecoded.

Soft code: it reads the routing tables and never changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

from motet.errors import EventError, InvariantError, MotetError, NotAdvertised
from motet.model import Hop, Value, check_attributes, decode_attributes, decode_body
from motet.model.limits import MAX_EVENT_BYTES
from motet.protocol.contract import Output
from motet.protocol.delivery.interest import Way
from motet.protocol.link.machine import Link
from motet.protocol.publication import Publication
from motet.protocol.routing.state import RoutingState
from motet.protocol.session.messages import Deliver, Delivery, Published, Refusal

if TYPE_CHECKING:
    from motet.broker.greeting import ClientSoft


KEPT_PLANS = 4096
LONGEST_REFUSAL = 1024


Plan = Way
UNSORTED: tuple[Publication | None, dict[str, list[int]]] = (None, {})


class Router:
    def __init__(
        self, state: RoutingState, links: dict[str, Link], clients: dict[str, ClientSoft]
    ) -> None:
        self._state = state
        self._links = links
        self._clients = clients
        self._plans: dict[int, Plan] = {}
        self._sorted_out: tuple[Publication | None, dict[str, list[int]]] = UNSORTED
        self.delivered = 0
        self.forwarded = 0
        self.refused = 0
        self.malformed = 0
        """Events from neighbours that no event can look like; they go nowhere."""

    def tables_changed(self) -> None:
        self._plans.clear()
        self._sorted_out = UNSORTED

    def _heard(self, client: str, subscriptions: tuple[int, ...]) -> tuple[int, ...]:
        """Those that best-effort events are for: not what belongs to a transaction that is not
        decided, nor what was ended by one, or was taken back before all knew of it."""
        marked = (*self._state.unsettled, *self._state.forsaken)
        quiet = {op.sequence for op in marked if op.client == client}
        return tuple(each for each in subscriptions if each not in quiet)

    # ── in ───────────────────────────────────────────────────────────────────────────────

    def publish(self, client: str, first: int, bodies: list[Raw], out: Output) -> Published:
        """Best-effort events of a client of ours: checked, stamped, routed."""
        batch: list[Publication] = []
        accepted, refused = self.accept(client, first, bodies)
        wrong = {each.sequence for each in refused}
        numbers = (n for n in range(first, first + len(bodies)) if n not in wrong)
        batch = [Publication(client, n, body) for n, body in zip(numbers, accepted, strict=True)]
        self._route(batch, ~0, out)
        return Published(first + len(bodies) - 1, refused)

    def accept(
        self, client: str, first: int, bodies: list[Raw]
    ) -> tuple[list[Raw], tuple[Refusal, ...]]:
        """Which of these events lie inside what their client advertised."""
        advertised = self._state.advertisements.index.hops_encoded
        own = self._state.bits.bit(Hop.client(client))
        accepted: list[Raw] = []
        refused: list[Refusal] = []
        tentative = any(op.client == client for op in self._state.undecided)
        for sequence, body in enumerate(bodies, first):
            mask = advertised(body)
            if mask is not None and mask & own and tentative and not self._is_sure(client, body):
                mask = 0
            if mask is not None and mask & own and len(memoryview(body)) <= MAX_EVENT_BYTES:
                accepted.append(body)
            else:
                error = self._objection(client, body)
                text = _short(str(error), LONGEST_REFUSAL)
                refused.append(Refusal(sequence, type(error).__name__, text))
        self.refused += len(refused)
        return accepted, tuple(refused)

    def _is_sure(self, client: str, body: Raw) -> bool:
        """Does an event lie inside what its client has advertised outside of transactions that
        are not decided?"""
        attributes = decode_attributes(body)
        own = self._state.advertisements.from_source(Hop.client(client))
        return any(not each.tx and each.filter.matches(attributes) for each in own)

    def forward(self, batch: list[Publication], neighbour: str, out: Output) -> None:
        """Events from a neighbour: they never go back where they came from."""
        self._route(batch, ~self._state.bits.bit(Hop.broker(neighbour)), out)

    # ── out ──────────────────────────────────────────────────────────────────────────────

    def _route(self, batch: list[Publication], allowed: int, out: Output) -> None:
        hops = self._state.subscriptions.index.hops_encoded
        masks: list[int] = []
        for each in batch:
            mask = hops(each.body)
            if mask is None:  # not worth a link: its edge should not have let it in
                self.malformed += 1
                mask = 0
            masks.append(mask & allowed)
        if masks and masks.count(masks[0]) == len(masks):
            if masks[0]:
                self._same_way(batch, self.plan(masks[0]), out)
            return
        onward: dict[str, list[Publication]] = {}
        local: dict[str, list[Delivery]] = {}
        for publication, mask in zip(batch, masks, strict=True):
            if not mask:
                continue
            plan = self.plan(mask)
            for neighbour in plan.neighbours:
                onward.setdefault(neighbour, []).append(publication)
            for client, subscriptions in plan.single:
                local.setdefault(client, []).append(Delivery(subscriptions, publication))
            if plan.several:
                self._sort_out(publication, plan.several, local)
        for neighbour, publications in onward.items():
            self._send(neighbour, publications, out)
        for client, deliveries in local.items():
            self._deliver(client, deliveries, out)

    def _same_way(self, batch: list[Publication], plan: Plan, out: Output) -> None:
        """The common case: a whole batch goes to the same hops."""
        for neighbour in plan.neighbours:
            self._send(neighbour, batch, out)
        for client, subscriptions in plan.single:
            self._deliver(client, [Delivery(subscriptions, p) for p in batch], out)
        if plan.several:
            local: dict[str, list[Delivery]] = {}
            for publication in batch:
                self._sort_out(publication, plan.several, local)
            for client, deliveries in local.items():
                self._deliver(client, deliveries, out)

    def _send(self, neighbour: str, batch: list[Publication], out: Output) -> None:
        self.forwarded += len(batch)
        self._links[neighbour].publish(batch, out)

    def _deliver(self, client: str, batch: list[Delivery], out: Output) -> None:
        soft = self._clients[client]
        if self._state.unsettled or self._state.forsaken:
            heard = ((self._heard(client, each.subscriptions), each) for each in batch)
            batch = [Delivery(subs, each.publication) for subs, each in heard if subs]
            if not batch:
                return
        if not soft.connection:
            soft.lost += len(batch)
            return
        self.delivered += len(batch)
        out.deliver.append((soft.connection, Deliver(batch)))

    # ── plans ────────────────────────────────────────────────────────────────────────────

    def plan(self, mask: int) -> Plan:
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
        return Plan(tuple(neighbours), tuple(single), tuple(several))

    def subscriptions_of(self, publication: Publication, client: str) -> tuple[int, ...]:
        """Which subscriptions of a client an event is for. One event is asked for by client after
        client, so the last answer is kept."""
        if publication is not self._sorted_out[0]:
            self._sorted_out = (publication, self._matching(publication))
        return tuple(self._sorted_out[1].get(client, ()))

    def _sort_out(
        self, publication: Publication, clients: tuple[str, ...], local: dict[str, list[Delivery]]
    ) -> None:
        """For clients with several subscriptions: which of them match."""
        for client, subscriptions in self._matching(publication).items():
            if client in clients:
                local.setdefault(client, []).append(Delivery(tuple(subscriptions), publication))

    def _matching(self, publication: Publication) -> dict[str, list[int]]:
        """By client of ours: which of its subscriptions match."""
        table, forsaken = self._state.subscriptions, self._state.forsaken
        found: dict[str, list[int]] = {}
        for key in table.index.match(decode_attributes(publication.body)):
            entry = table.entry(key)
            if not entry.source.is_broker and entry.id not in forsaken:
                found.setdefault(entry.source.name, []).append(entry.id.sequence)
        return found

    def _objection(self, client: str, body: Raw) -> MotetError:
        """What is wrong with an event that was not accepted."""
        try:
            attributes, _ = decode_body(body)
            check_attributes(attributes)
        except MotetError as error:
            return error
        size = len(memoryview(body))
        if size > MAX_EVENT_BYTES:
            return EventError(f"an event has at most {MAX_EVENT_BYTES} bytes, this one {size}")
        return NotAdvertised(self._outside(client, attributes))

    def _outside(self, client: str, attributes: dict[str, Value]) -> str:
        """Short whatever the event and the filters are: it is sent back, and remembered."""
        own = self._state.advertisements.from_source(Hop.client(client))
        space = " or ".join(f"({_short(str(entry.filter), 120)})" for entry in own[:3])
        more = f" or {len(own) - 3} more" if len(own) > 3 else ""
        shown = [f"{name}={_short(repr(v), 40)}" for name, v in list(attributes.items())[:8]]
        rest = ", …" if len(attributes) > 8 else ""
        event = "{" + ", ".join(shown) + rest + "}"
        return f"{client} advertised {space or 'nothing'}{more}; the event {event} lies outside"

    def validate(self) -> None:
        for mask in self._plans:
            if self._plans[mask] != self._make_plan(mask):
                raise InvariantError("a cached plan is out of date")


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
