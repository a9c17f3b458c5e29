"""Bugs in routing tables, and in the routing of best-effort events."""

from __future__ import annotations

from typing import Any

from motet.model import Hop
from motet.model.coverage import RETRACT
from motet.protocol.changes import Changes, NeighbourForgotten, NeighbourJoined, Sent
from motet.protocol.link.durable import DurableLinks
from motet.protocol.link.facts import NeighbourMet
from motet.protocol.publication import Publication
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import Unsubscribe
from motet.protocol.routing.obligations import Obligations
from motet.protocol.routing.soft import Publishing, Router
from motet.protocol.routing.state import WITHDRAW
from motet.protocol.session.messages import Published
from motet.testing.bugs.catalogue import Patch, around, mutation, nothing, replaces


@mutation("calm", "effective", "completeness")
@around(Obligations, "expect")
def echo_before_the_neighbours(
    original: Any, self: Any, message: Any, what: Any, source: Any, _: int, *, probe: Any = False
) -> None:
    """A broker echoes an operation at once instead of after all brokers behind it have echoed."""
    original(self, message, what, source, 0, probe=probe)


@mutation("calm", "routing", "effective", "completeness")
def attract_nothing() -> list[Patch]:
    """A new advertisement does not attract the subscriptions that existed before it."""
    return [Patch(Routing, "attract", nothing)]


@mutation("calm", "routing", "effective", "answers")
@around(Routing, "_announce")
def advertise_forgets_a_neighbour(
    original: Any, self: Any, entry: Any, neighbour: str, *, echo: bool
) -> None:
    """The last of several neighbours is marked as told of an advertisement, but is never told."""
    if neighbour == self.state.bits.neighbours[-1] and len(self.state.bits.neighbours) > 1:
        entry.sent |= self._bit(neighbour)
    else:
        original(self, entry, neighbour, echo=echo)


@mutation("calm", "routing")
@replaces(Routing, "_unsubscribe")
def unsubscribe_stays_local(self: Any, message: Unsubscribe, source: Hop) -> None:
    """An unsubscription takes effect at its own broker and is not passed on."""
    self._take_away(self.state.subscriptions, message.target, source)
    self.obligations.echo(message.op, source)


@mutation("calm", "completeness", "effective", covering=True, control_chunk=1, hop_s=(0.001, 0.05))
@around(Routing, "_take_back")
def unsubscribe_before_what_it_covered(
    original: Any, self: Any, *args: Any, **options: Any
) -> None:
    """A covering subscription is removed before the subscriptions that it covered are sent."""
    changes = self._out.changes
    before = len(changes)
    original(self, *args, **options)
    sent = [at for at, each in enumerate(changes) if type(each) is Sent and at >= before]
    changes.insert(before, changes.pop(sent[-1]))


@mutation("calm", "routing")
def unadvertise_keeps_unsupported_subscriptions() -> list[Patch]:
    """Subscriptions stay where the last advertisement that attracted them is gone."""
    return [Patch(Routing, "withdraw_unsupported", nothing)]


@mutation("transactions", "exactly-once")
@replaces(Routing, "withdraw_unsupported")
def unadvertise_withdraws_supported_subscriptions(
    self: Any, advertisement: Any, keep: Any = ()
) -> None:
    """Subscriptions are withdrawn from a neighbour that still has another advertisement for
    them."""
    neighbour = advertisement.source.name
    for subscription in self.state.subscriptions.overlapping(advertisement.filter):
        if subscription.id not in keep and subscription.sent & self._bit(neighbour):
            self.withdraw(subscription, neighbour)


@mutation("calm", "routing", "completeness", "effective", covering=True)
def uncovered_is_not_sent_again() -> list[Patch]:
    """When a covering entry is removed, the entries that it covered are not sent."""
    return [Patch(Routing, "_uncovered", lambda *_: [])]


@mutation("calm", "completeness", "effective", covering=RETRACT, control_chunk=1)
@around(Routing, "_tell")
def retract_before_the_wider_one(
    original: Any, self: Any, table: Any, message: Any, entry: Any, neighbour: str, *rest: Any
) -> None:
    """What a wider filter covers is taken back before the wider filter is sent."""
    covering = [o for o in table.covering(entry.filter) if o is not entry]
    if not any(other.sent & self._bit(neighbour) for other in covering):
        self._retract_covered(table, message, entry, neighbour)
    original(self, table, message, entry, neighbour, *rest)


@mutation("calm", "effective", covering=RETRACT, hop_s=(0.001, 0.05))
@around(Routing, "_retract_covered")
def removal_ignores_what_is_being_taken_back(original: Any, self: Any, *args: Any) -> None:
    """A removal is reported while a neighbour still has the entry, which was taken back there."""
    before = set(self.state.waits)
    original(self, *args)
    for wait in [each for op, each in self.state.waits.items() if op not in before]:
        if wait.what == WITHDRAW:
            del self.state.waits[wait.op]


@mutation("calm", "routing")
@replaces(Routing, "end")
def session_end_is_not_flooded(self: Any, client: str, epoch: str) -> Changes:
    """Other brokers keep an ended session in their client routing tables."""
    source = Hop.client(client)
    self._remove_all(source)
    self.state.clients.pop((client, epoch), None)
    self.state.bits.release(source)
    changes: Changes = self._out.take()
    return changes


@mutation("crash", "routing", "invariants")
@replaces(Routing, "forget")
def neighbour_without_state_is_not_forgotten(self: Any, *_: Any, **__: Any) -> Changes:
    """The entries of a neighbour that lost its state are kept."""
    changes: Changes = self._out.take()
    return changes


@mutation("crash", "routing", "answers")
@replaces(DurableLinks, "_neighbour_met")
def neighbour_without_state_is_told_nothing(self: Any, fact: NeighbourMet) -> None:
    """A neighbour that lost its state is not sent the current entries."""
    known_before = self.ledgers[fact.neighbour].record.incarnation
    self._bus.emit(NeighbourForgotten(fact.neighbour, empty=True))
    self.ledgers[fact.neighbour].restart(fact.incarnation)
    if not known_before:
        self._bus.emit(NeighbourJoined(fact.neighbour))


@mutation("crash", "effective", "completeness", menu={"amnesia": 4.0})
@around(Routing, "_subscribe")
def strangers_count_as_complete(original: Any, self: Any, message: Any, source: Hop) -> None:
    """A broker that lost its state echoes before its neighbours have reported everything."""
    state = self.state
    known, state.complete = state.complete, state.bits.all_neighbours
    original(self, message, source)
    state.complete = known


@mutation("calm", "duplicates", "settles")
@replaces(Router, "forward")
def publications_go_back(self: Any, batch: Any, neighbour: str, out: Any) -> None:
    """A broker also sends an event back to the neighbour that it came from."""
    del neighbour
    self._route(batch, ~0, out)


@mutation("calm", "soundness")
@replaces(Router, "publish")
def nothing_is_refused(self: Any, client: str, first: int, bodies: Any, out: Any) -> Published:
    """Events outside the advertised space are accepted and routed."""
    batch = [Publication(client, number, body) for number, body in enumerate(bodies, first)]
    self._route(batch, ~0, out)
    return Published(first + len(bodies) - 1)


@mutation("calm", "invariants", "soundness", "completeness")
def plans_go_stale() -> list[Patch]:
    """The router keeps its cached plans when the routing tables change."""
    return [Patch(Router, "tables_changed", nothing)]


@mutation(
    "clients",
    "soundness",
    action_s=0.008,
    sync=1.0,
    lease_s=15.0,
    weights=(80.0, 8.0, 4.0, 4.0, 6.0, 1.0, 1.5),
    menu={"drop_client": 8.0, "pace_s": 0.2},
)
def refusals_are_lost_with_the_connection() -> list[Patch]:
    """A client that resumes is told what was processed, but not what was refused."""
    return [Patch(Publishing, "_remember_refusals", nothing)]
