"""Obligations: which operation waits for which echoes, and which neighbours are complete.

This part of the routing machine knows nothing of tables and filters. A removal may also have to
wait until a withdrawal of the same subscription is complete.

A broker that has lost its state, or is new, makes the whole overlay unsure. Advertisements come
back with the link and end with a message (`Complete`); the subscriptions they attract come back a
little later, ahead of a probe's echo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from motet.model import Filter, Hop, OpId
from motet.protocol.changes import ArrivalEchoed, Changes, Completed, Sent
from motet.protocol.routing.messages import (
    Advertise,
    Complete,
    Echo,
    RoutingMessage,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.routing.state import (
    ARRIVAL,
    HERE,
    PROBES,
    RECHECK,
    REMOVALS,
    WITHDRAW,
    HopBits,
    RoutingState,
    Wait,
)

NOTHING = Filter()
"""The filter of a probe that only follows advertisements."""
_ADDITIONS = (Advertise, Subscribe)


class Emitter:
    """Collects the changes of a move: messages to neighbours, and changes for other rooms."""

    def __init__(self, bits: HopBits) -> None:
        self._bits = bits
        self.changes = Changes()

    def send(self, neighbour: str, message: RoutingMessage) -> None:
        self.changes.append(Sent(neighbour, message))

    def flood(self, message: RoutingMessage, source: Hop) -> None:
        bits = self._bits
        for neighbour in bits.names(bits.all_neighbours & ~bits.bit(source)):
            self.send(neighbour, message)

    def take(self) -> Changes:
        changes, self.changes = self.changes, Changes()
        return changes


class LostStarts(Protocol):
    def whole(self, neighbour: str) -> None: ...


class AwaitedStarts(Protocol):
    def whole(self) -> None: ...


class Obligations:
    def __init__(
        self,
        life: str,
        state: RoutingState,
        starts: LostStarts,
        joins: AwaitedStarts,
        out: Emitter,
    ) -> None:
        """`life` names this broker and its incarnation, for its own operations."""
        self._starts = starts
        self._joins = joins
        self._life = life
        self._state = state
        self._out = out
        self.rechecks = True
        """Neighbours are asked again under a new name; see `ControlReceived.rechecks`."""
        self.holds: Callable[[OpId, str], bool] = lambda *_: False
        """Whether the echo of an advertisement, or of a probe, to a neighbour must wait for clients
        that have passed here."""

    # ── echoes ───────────────────────────────────────────────────────────────────────────

    def echoed(self, message: Echo, source: Hop) -> None:
        state = self._state
        wait = state.waits.get(message.op)
        if wait is None:  # it was withdrawn or abandoned meanwhile
            return
        bit = state.bits.bit(source)
        late = not state.complete & bit or state.waits.rechecked(wait.op, bit)
        if not (late and wait.what == "subscribe" and self.rechecks):
            self.discharge(wait, bit)  # else the echo that counts follows: see `_reconsider`

    def expect(
        self,
        message: Advertise | Subscribe | Unadvertise | Unsubscribe,
        what: str,
        source: Hop,
        missing: int,
        *,
        probe: bool = False,
    ) -> None:
        """Echo an operation, if a client waits for it, once the `missing` neighbours have."""
        if isinstance(message, _ADDITIONS):
            op = message.id if message.echo else None
            filter = message.filter if probe else None
        else:
            op, filter = message.op, None
        if op is None:
            return
        target = None if isinstance(message, _ADDITIONS) else message.target
        if type(message) is Unadvertise and target not in self._state.waits.removals:
            target = None
        if not missing and target not in self._state.waits.removals:
            if what == "advertise":
                self._echo_advertisement(op, source)
            else:
                self.echo(op, source)  # as `settle` would do, but without an obligation
            return
        wait = Wait(op, what, source, missing, filter, target)
        self._state.waits[op] = wait
        if not missing:
            self.settle(wait)

    def discharge(self, wait: Wait, bit: int) -> None:
        if not wait.missing & bit:
            return
        wait.missing &= ~bit
        if not wait.missing:
            self.settle(wait)
        if wait.target is not None and wait.what != RECHECK:
            self._release(wait.target)

    def settle(self, wait: Wait) -> None:
        """All neighbours have echoed; a removal may still have to wait for others."""
        if not self._state.missing(wait):
            del self._state.waits[wait.op]
            self._complete(wait)

    def _release(self, target: OpId) -> None:
        """A removal has come further: complete those that have waited for it."""
        state = self._state
        for op in list(state.waits.removals.get(target, ())):
            wait = state.waits.get(op)
            if wait is not None and not wait.retired and not state.missing(wait):
                self.settle(wait)

    def drop(self, wait: Wait) -> None:
        """Nobody waits for this operation any more; but others may have to wait for a removal."""
        if wait.what in REMOVALS and wait.target is not None and wait.missing:
            wait.what = WITHDRAW
        else:
            self._state.waits.pop(wait.op)

    def _complete(self, wait: Wait) -> None:
        if wait.what == "restore":
            self._whole(wait.requester)
        elif wait.what == RECHECK:
            self._rechecked(wait)
        elif wait.what == ARRIVAL:
            self._out.changes.append(ArrivalEchoed(wait.op))
        elif wait.what == "advertise":
            self._echo_advertisement(wait.op, wait.requester)
        elif wait.what not in (*PROBES, WITHDRAW):
            self.echo(wait.op, wait.requester)

    def _echo_advertisement(self, op: OpId, requester: Hop) -> None:
        if not (requester.is_broker and self.holds(op, requester.name)):
            self.echo(op, requester)

    def echo(self, op: OpId | None, requester: Hop) -> None:
        if op is None:
            return
        if requester.is_broker:
            self._out.send(requester.name, Echo(op))
        else:
            self._out.changes.append(Completed(op))

    def withdraw(self, target: OpId, source: Hop, bit: int) -> OpId:
        """An entry is removed at one neighbour, but not by its client. Returns the name of the
        removal, which asks for an echo, because a removal by the client must wait for it as
        well."""
        op = self._name()
        self._state.waits[op] = Wait(op, WITHDRAW, source, bit, target=target)
        return op

    def _name(self) -> OpId:
        self._state.removals += 1
        return OpId("", self._life, self._state.removals)

    # ── complete neighbours ──────────────────────────────────────────────────────────────

    def completed(self, message: Complete, source: Hop) -> None:
        state = self._state
        for wait in [w for w in state.waits.values() if w.what == "restore"]:
            if wait.requester == source:  # it was about an earlier `Complete`
                del state.waits[wait.op]
        if not message.whole:
            state.complete &= ~state.bits.bit(source)
            self.declare()
            self.doubt(source)
        elif state.hosted:
            self._restore(source)
        else:
            self._whole(source)

    def _restore(self, source: Hop) -> None:
        """A neighbour has reported all advertisements behind it, but subscriptions that our
        advertisements attract there, or its advertisements attract elsewhere, may still be on their
        way. A probe follows these advertisements and echoes behind the attracted subscriptions;
        until then all hops get every event, and nothing is acknowledged."""
        state = self._state
        bit = state.bits.bit(source)
        if state.advertisements.count(source):
            for neighbour in state.bits.names(state.bits.all_neighbours & ~bit):
                self._probe("reassure", Hop.broker(neighbour))
        if any(entry.sent & bit for entry in state.advertisements):
            self._probe("restore", source)
        else:
            self._whole(source)

    def reassure(self) -> None:
        """Some broker is not sure that the subscriptions of others reach it. When these probes are
        echoed, all subscriptions that existed before them have arrived here."""
        for neighbour in self._state.bits.names(self._state.met):
            self._probe("reassure", Hop.broker(neighbour))

    def probe_arrival(self, towards: int) -> OpId:
        """A client that publishes has arrived."""
        op = self._name()
        self._state.waits[op] = Wait(op, ARRIVAL, HERE, towards)
        for neighbour in self._state.bits.names(towards):
            self._out.send(neighbour, Advertise(op, NOTHING, echo=True, probe=True))
        return op

    def _probe(self, what: str, neighbour: Hop) -> None:
        op = self._name()
        self._state.waits[op] = Wait(op, what, neighbour, self._state.bits.bit(neighbour))
        self._out.send(neighbour.name, Advertise(op, NOTHING, echo=True, probe=True))

    def _whole(self, source: Hop) -> None:
        """Everything behind a neighbour is known."""
        state = self._state
        bit = state.bits.bit(source)
        state.complete |= bit
        self._starts.whole(source.name)
        self._joins.whole()
        self.declare()
        for wait in [w for w in state.waits.values() if w.missing & bit and w.what == "subscribe"]:
            self._reconsider(wait, source.name, bit)

    def doubt(self, hop: Hop) -> None:
        """State behind this neighbour was lost: its echoes may no longer be valid, so subscriptions
        that still wait for other neighbours wait for it again."""
        waits, bit = self._state.waits, self._state.bits.bit(hop)
        for wait in list(waits.values()):
            if wait.what == "subscribe" and wait.requester != hop:
                wait.missing |= bit
            elif wait.what == RECHECK and wait.requester == hop:
                del waits[wait.op]

    def _reconsider(self, wait: Wait, neighbour: str, bit: int) -> None:
        """A neighbour that a subscription waited for is now complete. If there is an advertiser
        behind it, a probe follows the attracted subscription and brings the echo. The probe has a
        name of its own: if the subscription was withdrawn and came again, an earlier echo may be on
        its way, which the neighbour sent before it heard of either."""
        state = self._state
        entry = state.subscriptions.get(wait.op)
        wanted = entry.filter if entry is not None else wait.probe
        if wanted is None or not state.advertisements.overlapping_hops(wanted) & bit:
            self.discharge(wait, bit)
            return
        op = wait.op
        if self.rechecks:
            op = self._name()
            state.waits[op] = Wait(op, RECHECK, Hop.broker(neighbour), bit, target=wait.op)
        self._out.send(neighbour, Subscribe(op, wanted, echo=True, probe=True))

    def _rechecked(self, recheck: Wait) -> None:
        assert recheck.target is not None
        wait = self._state.waits.get(recheck.target)
        if wait is not None:
            self.discharge(wait, self._state.bits.bit(recheck.requester))

    def declare(self) -> None:
        """Tell every met neighbour whether everything behind us is known, whenever that changes."""
        state = self._state
        everyone = state.bits.all_neighbours
        for neighbour in state.bits.names(state.met):
            bit = state.bits.bit(Hop.broker(neighbour))
            whole = not (everyone & ~bit & ~state.complete)
            if whole != bool(state.declared & bit):
                state.declared ^= bit
                self._out.send(neighbour, Complete(whole))
