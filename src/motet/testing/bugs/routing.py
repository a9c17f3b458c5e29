"""Bugs in who hears of which advertisement, subscription and client."""

from __future__ import annotations

from typing import Any

from motet.broker import durable, facts
from motet.model import Hop
from motet.protocol.routing import machine as routing
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import Subscribe, Unsubscribe
from motet.protocol.routing.obligations import Effects, Obligations
from motet.testing.bugs.catalogue import mutation, nothing
from motet.testing.patches import Patch


@mutation("calm", "effective", "completeness")
def echo_before_the_neighbours() -> list[Patch]:
    """A broker answers for an operation at once instead of when all behind it have."""
    original = Obligations._await

    def hasty(
        self: Any, message: Any, what: Any, source: Any, _: int, *, probe: Any = False
    ) -> None:
        original(self, message, what, source, 0, probe=probe)

    return [Patch(Obligations, "_await", hasty)]


@mutation("calm", "routing", "effective", "completeness")
def attract_nothing() -> list[Patch]:
    """Subscriptions that were there first do not follow a new advertisement."""
    return [Patch(Routing, "_attract", nothing)]


@mutation("calm", "routing", "effective", "answers")
def advertise_forgets_a_neighbour() -> list[Patch]:
    """The last of several neighbours is marked as told, but never is."""
    original = Routing._announce

    def forgetful(self: Any, entry: Any, neighbour: str, *, echo: bool) -> None:
        if neighbour == self.state.bits.neighbours[-1] and len(self.state.bits.neighbours) > 1:
            entry.sent |= self._bit(neighbour)
        else:
            original(self, entry, neighbour, echo=echo)

    return [Patch(Routing, "_announce", forgetful)]


@mutation("calm", "routing")
def unsubscribe_stays_local() -> list[Patch]:
    """An unsubscription is carried out at its own broker and passed on to nobody."""

    def local(self: Any, message: Unsubscribe, source: Hop) -> None:
        self._take_away(self.state.subscriptions, message.target, source)
        self._echo_at_once(message.op, source)

    return [Patch(routing.MOVES, Unsubscribe, local)]


@mutation("calm", "completeness", "effective", covering=True, control_chunk=1, hop_s=(0.001, 0.05))
def unsubscribe_before_what_it_covered() -> list[Patch]:
    """A covering subscription is taken back before what it covered is sent."""
    original = Routing._take_back

    def hasty(self: Any, *args: Any, **options: Any) -> None:
        messages = self._effects.messages
        before = len(messages)
        original(self, *args, **options)
        messages.insert(before, messages.pop())

    return [Patch(Routing, "_take_back", hasty)]


@mutation("calm", "routing")
def unadvertise_keeps_unsupported_subscriptions() -> list[Patch]:
    """Subscriptions stay where the last advertisement they followed has gone."""
    return [Patch(Routing, "_withdraw_unsupported", nothing)]


@mutation("calm", "routing", "completeness", covering=True)
def uncovered_is_not_sent_again() -> list[Patch]:
    """When a covering entry leaves, nobody hears of what it covered."""
    return [Patch(Routing, "_uncovered", lambda *_: [])]


@mutation("calm", "routing")
def session_end_is_not_flooded() -> list[Patch]:
    """The client routing table of others keeps a session that ended."""

    def quiet(self: Any, client: str, epoch: str) -> Effects:
        source = Hop.client(client)
        self._remove_all(source)
        self.state.clients.pop((client, epoch), None)
        self.state.bits.release(source)
        effects: Effects = self._take_effects()
        return effects

    return [Patch(Routing, "end", quiet)]


@mutation("crash", "routing", "invariants")
def neighbour_without_state_is_not_forgotten() -> list[Patch]:
    """What a neighbour said before it lost its state is believed to hold still."""

    def faithful(self: Any, *_: Any, **__: Any) -> Effects:
        effects: Effects = self._take_effects()
        return effects

    return [Patch(Routing, "forget", faithful)]


@mutation("crash", "routing", "answers")
def neighbour_without_state_is_told_nothing() -> list[Patch]:
    """A neighbour that lost its state does not hear what there is."""

    def mute(self: Any, fact: facts.NeighbourMet) -> None:
        known_before = self.ledgers[fact.neighbour].record.incarnation
        self._carry(self.routing.forget(fact.neighbour))
        self.ledgers[fact.neighbour].restart(fact.incarnation)
        if not known_before:
            self._carry(self.routing.join(fact.neighbour))

    return [Patch(durable.MOVES, facts.NeighbourMet, mute)]


@mutation("crash", "effective", "completeness", menu={"amnesia": 4.0})
def strangers_count_as_complete() -> list[Patch]:
    """A broker that lost its state answers before its neighbours have told it everything."""
    original = Routing._subscribe

    def trusting(self: Any, message: Any, source: Hop) -> None:
        state = self.state
        known, state.complete = state.complete, state.bits.all_neighbours
        original(self, message, source)
        state.complete = known

    return [Patch(routing.MOVES, Subscribe, trusting)]
