"""The path of publications: received from clients and neighbours, routed, acknowledged.

An event is matched once, to a mask of hops, and its body is passed on undecoded. Soft code: it
reads the routing tables and never changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from motet.errors import InvariantError, MotetError, ProtocolError
from motet.model import Hop, Value, check_attributes, decode_attributes, decode_body
from motet.model.limits import LAST_SEQUENCE, MAX_EVENT_BYTES
from motet.protocol.contract import Output
from motet.protocol.delivery.interest import Way
from motet.protocol.link.machine import Link
from motet.protocol.link.messages import Publications
from motet.protocol.publication import Publication
from motet.protocol.room import LISTED, Objection, Peer, SoftRoom
from motet.protocol.routing.machine import Routing
from motet.protocol.session.messages import Deliver, Delivery, Publish, Published, Refusal

if TYPE_CHECKING:
    from motet.protocol.delivery.soft import Streams
    from motet.protocol.shared import ClientSoft, SharedState

REMEMBERED_REFUSALS = 64
KEPT_PLANS = 4096
LONGEST_REFUSAL = 1024
UNSORTED: tuple[Publication | None, dict[str, list[int]]] = (None, {})


class Router:
    def __init__(
        self, routing: Routing, links: dict[str, Link], clients: dict[str, ClientSoft]
    ) -> None:
        self._state = routing.state
        self._marks = routing.marks
        self._forsaken = routing.starts.forsaken
        self._links = links
        self._clients = clients
        self.plans: dict[int, Way] = {}
        self._sorted_out: tuple[Publication | None, dict[str, list[int]]] = UNSORTED
        self.turned: dict[str, Callable[[list[Publication], str, Output], None]] = {}
        """By neighbour: takes its events, because some may be for clients that have moved there."""
        self.keepers: dict[str, Callable[[list[Delivery]], None]] = {}
        """By client: takes its events, because earlier ones are still on their way to it."""
        self.delivered = 0
        self.forwarded = 0
        self.refused = 0
        self.malformed = 0
        """Events from neighbours with an invalid body; they are dropped."""

    def tables_changed(self) -> None:
        self.plans.clear()
        self._sorted_out = UNSORTED

    def _heard(self, client: str, epoch: str, subscriptions: tuple[int, ...]) -> tuple[int, ...]:
        """The subscriptions that get best-effort events: without those of undecided transactions,
        those ended by a transaction, and those removed before the removal is known everywhere."""
        marked = (*self._marks.unsettled, *self._forsaken)
        quiet = {op.sequence for op in marked if op.client == client and op.epoch == epoch}
        return tuple(each for each in subscriptions if each not in quiet)

    def heard(self, client: str, batch: list[Delivery]) -> list[Delivery]:
        """Best-effort events for those subscriptions of a local client that get them."""
        epoch = self._clients[client].epoch
        found = ((self._heard(client, epoch, each.subscriptions), each) for each in batch)
        return [Delivery(subs, each.publication) for subs, each in found if subs]

    # ── in ───────────────────────────────────────────────────────────────────────────────

    def publish(self, client: str, first: int, bodies: list[Raw], out: Output) -> Published:
        """Best-effort events of a local client: checked, stamped, routed."""
        batch: list[Publication] = []
        accepted, refused = self.accept(client, first, bodies)
        wrong = {each.sequence for each in refused}
        numbers = (n for n in range(first, first + len(bodies)) if n not in wrong)
        batch = [Publication(client, n, body) for n, body in zip(numbers, accepted, strict=True)]
        self._route(batch, ~0, out)
        return Published(first + len(bodies) - 1, refused)

    def accept(
        self,
        client: str,
        first: int,
        bodies: list[Raw],
        sent_before: Mapping[int, int] = MappingProxyType({}),
    ) -> tuple[list[Raw], tuple[Refusal, ...]]:
        """Split events into those that their client has advertised, and refusals. `sent_before`:
        by advertisement, the last event that was sent before it."""
        advertised = self._state.advertisements.index.hops_encoded
        own = self._state.bits.bit(Hop.client(client))
        accepted: list[Raw] = []
        refused: list[Refusal] = []
        unsure = bool(sent_before) or any(op.client == client for op in self._marks.undecided)
        for sequence, body in enumerate(bodies, first):
            mask = advertised(body)
            if unsure and mask and not self._is_sure(client, body, sequence, sent_before):
                mask = 0
            if mask is not None and mask & own and len(memoryview(body)) <= MAX_EVENT_BYTES:
                accepted.append(body)
            else:
                error, text = self._objection(client, body)
                refused.append(Refusal(sequence, error, _short(text, LONGEST_REFUSAL)))
        self.refused += len(refused)
        return accepted, tuple(refused)

    def _is_sure(self, client: str, body: Raw, number: int, sent_before: Mapping[int, int]) -> bool:
        """Whether an event matches what its client has advertised before it, outside of undecided
        transactions."""
        attributes = decode_attributes(body)
        own = self._state.advertisements.from_source(Hop.client(client))
        return any(
            not each.tx
            and sent_before.get(each.id.sequence, 0) < number
            and each.filter.matches(attributes)
            for each in own
        )

    def forward(self, batch: list[Publication], neighbour: str, out: Output) -> None:
        """Events from a neighbour: they are never sent back to it."""
        if self.turned and neighbour in self.turned:
            self.turned[neighbour](batch, neighbour, out)
        self._route(batch, ~self._state.bits.bit(Hop.broker(neighbour)), out)

    # ── out ──────────────────────────────────────────────────────────────────────────────

    def _route(self, batch: list[Publication], allowed: int, out: Output) -> None:
        hops = self._state.subscriptions.index.hops_encoded
        masks: list[int] = []
        for each in batch:
            mask = hops(each.body)
            if mask is None:  # not worth closing the link: its edge should have refused it
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

    def _same_way(self, batch: list[Publication], plan: Way, out: Output) -> None:
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
        if self._marks.unsettled or self._forsaken:
            batch = self.heard(client, batch)
            if not batch:
                return
        if self.keepers and client in self.keepers:
            self.keepers[client](batch)
        else:
            self.give(client, batch, out)

    def give(self, client: str, batch: list[Delivery], out: Output) -> None:
        """Events for a local client; if it is not connected, they are lost."""
        soft = self._clients[client]
        if not soft.connection:
            soft.lost += len(batch)
            return
        self.delivered += len(batch)
        out.deliver.append((soft.connection, Deliver(batch)))

    # ── plans ────────────────────────────────────────────────────────────────────────────

    def plan(self, mask: int) -> Way:
        plan = self.plans.get(mask)
        if plan is None:
            if len(self.plans) >= KEPT_PLANS:
                self.plans.clear()
            plan = self.plans[mask] = self._make_plan(mask)
        return plan

    def _make_plan(self, mask: int) -> Way:
        table = self._state.subscriptions
        neighbours, single, several = [], [], []
        for hop in self._state.bits.hops(mask):
            if hop.is_broker:
                neighbours.append(hop.name)
            elif table.count(hop) == 1:
                single.append((hop.name, (table.from_source(hop)[0].id.sequence,)))
            else:
                several.append(hop.name)
        return Way(tuple(neighbours), tuple(single), tuple(several))

    def subscriptions_of(self, publication: Publication, client: str) -> tuple[int, ...]:
        """The subscriptions of a client that match an event. The same event is looked up for many
        clients in a row, so the last answer is cached."""
        if publication is not self._sorted_out[0]:
            self._sorted_out = (publication, self._matching(publication))
        return tuple(self._sorted_out[1].get(client, ()))

    def _sort_out(
        self, publication: Publication, clients: tuple[str, ...], local: dict[str, list[Delivery]]
    ) -> None:
        """For clients with several subscriptions: deliver to those that match."""
        for client, subscriptions in self._matching(publication).items():
            if client in clients:
                local.setdefault(client, []).append(Delivery(tuple(subscriptions), publication))

    def _matching(self, publication: Publication) -> dict[str, list[int]]:
        """By local client: its matching subscriptions."""
        table, forsaken = self._state.subscriptions, self._forsaken
        found: dict[str, list[int]] = {}
        for key in table.index.match(decode_attributes(publication.body)):
            entry = table.entry(key)
            if not entry.source.is_broker and entry.id not in forsaken:
                found.setdefault(entry.source.name, []).append(entry.id.sequence)
        return found

    def _objection(self, client: str, body: Raw) -> Objection:
        """Why an event was refused."""
        try:
            attributes, _ = decode_body(body)
            check_attributes(attributes)
        except MotetError as error:
            return Objection(type(error).__name__, str(error))
        size = len(memoryview(body))
        if size > MAX_EVENT_BYTES:
            text = f"an event has at most {MAX_EVENT_BYTES} bytes, this one {size}"
            return Objection("EventError", text)
        return Objection("NotAdvertised", self._outside(client, attributes))

    def _outside(self, client: str, attributes: dict[str, Value]) -> str:
        """Short for any event and filters, because it is sent back and remembered."""
        own = self._state.advertisements.from_source(Hop.client(client))
        space = " or ".join(f"({_short(str(entry.filter), 120)})" for entry in own[:3])
        more = f" or {len(own) - 3} more" if len(own) > 3 else ""
        shown = [f"{name}={_short(repr(v), 40)}" for name, v in list(attributes.items())[:8]]
        rest = ", …" if len(attributes) > 8 else ""
        event = "{" + ", ".join(shown) + rest + "}"
        if any(entry.filter.matches(attributes) and not entry.tx for entry in own):
            return f"{client} advertised the event {event} only after it was sent: publish it again"
        known = f", but only {space}{more}" if own else ""
        return f"{client} has not advertised the event {event}{known}: advertise it first"

    def validate(self) -> None:
        for mask in self.plans:
            if self.plans[mask] != self._make_plan(mask):
                raise InvariantError("a cached plan is out of date")


class Publishing(SoftRoom):
    def __init__(self, shared: SharedState, router: Router, streams: Streams) -> None:
        self._shared = shared
        self.router = router
        self._streams = streams
        streams.settled = self.settled

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {Publish: self._publish, Publications: self._publications}

    def account(self) -> dict[str, Any]:
        state, router, counts = self._shared.durable.routing.state, self.router, self._shared.counts
        few = len(state.subscriptions) <= LISTED
        return {
            "tables": {
                "advertisements": len(state.advertisements),
                "subscriptions": len(state.subscriptions),
                "buffered_subscriptions": len(state.buffered()) if few else None,
                "clients": len(state.clients),
                "waiting_operations": len(state.waits),
                "retired_advertisements": len(state.retired),
                "ignored_messages": self._shared.durable.routing.ignored,
            },
            "tree": self._tree(),
            "counts": {
                "steps": counts.steps,
                "published": counts.published,
                "received": counts.received,
                "delivered": router.delivered,
                "forwarded": router.forwarded,
                "refused": router.refused,
                "malformed": router.malformed,
                "expelled": dict(counts.expelled),
            },
        }

    def _tree(self) -> list[list[str]]:
        """All links of the overlay, as far as known here."""
        links: dict[tuple[str, str], None] = {}
        for path in self._shared.durable.routing.state.paths.values():
            for one, other in pairwise((self._shared.name, *path)):
                links[min(one, other), max(one, other)] = None
        return [list(each) for each in sorted(links)]

    def validate(self) -> None:
        self.router.validate()

    def _publish(
        self, connection: int, peer: Peer, frame: Publish, out: Output, now: float
    ) -> None:
        soft = self._shared.clients[peer.name]
        if not 0 < frame.first <= LAST_SEQUENCE:
            raise ProtocolError(f"publication {frame.first} is not a sequence")
        soft.warned = True
        first, bodies = frame.first, frame.bodies
        known = soft.published + 1 - first
        if known > 0:  # duplicates: they are acknowledged when they are durable
            first, bodies = first + known, bodies[known:]
        if not bodies:
            out.deliver.append((connection, Published(soft.settled)))
            return
        soft.published = first + len(bodies) - 1
        if frame.sure:
            accepted, refused = self._accept(peer.name, soft, first, bodies)
            self._streams.publish(peer.name, soft.epoch, first, accepted, refused, out, now)
            self._shared.counts.published += len(accepted)
            return
        answer = self.router.publish(peer.name, first, bodies, out)
        self._shared.counts.published += len(bodies) - len(answer.refused)
        if not self._streams.follow(peer.name, soft.epoch, answer.upto, answer.refused):
            self.settled(peer.name, soft.epoch, answer.upto, answer.refused, out)

    def _accept(
        self, client: str, soft: ClientSoft, first: int, bodies: list[Raw]
    ) -> tuple[list[Raw], tuple[Refusal, ...]]:
        """Exactly-once events; without a pubend all are refused."""
        if self._streams.pubend and first <= soft.resent:
            sent_before = self._shared.durable.sessions.sent_before.get(client, {})
            return self.router.accept(client, first, bodies, sent_before)
        if self._streams.pubend:
            return self.router.accept(client, first, bodies)
        text = (
            f"{self._shared.config.name} does not deliver exactly once"
            + (", because covering is on" if self._shared.config.covering else "")
            + "; publish with `best_effort=True`"
        )
        numbers = range(first, first + len(bodies))
        return [], tuple(Refusal(number, "NotOffered", text) for number in numbers)

    def settled(
        self, client: str, epoch: str, upto: int, refused: tuple[Refusal, ...], out: Output
    ) -> None:
        """Publications were accepted or refused."""
        soft = self._shared.clients.get(client)
        if soft is None or soft.epoch != epoch:
            return
        soft.settled = max(soft.settled, upto)
        if refused:
            self._remember_refusals(soft, refused)
        if soft.connection:
            out.deliver.append((soft.connection, Published(upto, refused)))

    def _remember_refusals(self, soft: ClientSoft, refused: tuple[Refusal, ...]) -> None:
        together = soft.refused + refused
        soft.refused = together[-REMEMBERED_REFUSALS:]
        if len(together) > REMEMBERED_REFUSALS:
            soft.forgotten = together[-REMEMBERED_REFUSALS - 1].sequence

    def _publications(
        self, connection: int, peer: Peer, frame: Publications, out: Output, now: float
    ) -> None:
        del connection, now
        link = self._shared.links[peer.name]
        if link.move("publications") == "accept" and link.admit(frame):
            self._shared.counts.received += len(frame.batch)
            self.router.forward(frame.batch, peer.name, out)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
