"""Obligations: who waits for which echoes, and what happens when the last one is in.

The part of the routing machine that knows nothing of filters. A removal may also have to wait
until a withdrawal of the same subscription is complete.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from motet.model import Hop, OpId
from motet.protocol.routing.messages import (
    Advertise,
    Echo,
    RoutingMessage,
    Started,
    Subscribe,
    Switched,
    Unadvertise,
    Unsubscribe,
)
from motet.protocol.routing.state import RoutingState, Wait

_ADDITIONS = (Advertise, Subscribe)


class Completed(NamedTuple):
    """A local client's operation is effective, or was withdrawn while it waited."""

    op: OpId
    withdrawn: bool = False


class Changes(Struct):
    """What becomes of starts, subscriptions and advertisements, whoever carries it out."""

    starts: list[tuple[int, OpId, bool]] = []
    """To be written into our log; with whether it is part of a transaction that is not decided."""
    restarted: list[tuple[int, OpId, bool]] = []
    """Starts that are in our log, and count again."""
    started: list[Started] = []
    """What subscriptions of our clients are owed from now on."""
    switched: list[Switched] = []
    """Where subscriptions of our clients begin, or end, because of a cut."""
    lifted: list[Started] = []
    """What subscriptions of our clients are not owed any more: everything up to a tick."""
    ended: list[OpId] = []
    """Subscriptions of our clients that are over."""
    retired: list[OpId] = []
    """Advertisements of our clients that are over once their events have arrived."""
    destroyed: list[str] = []
    """Pubends whose log does not exist any more."""
    awaiting: dict[str, None] = {}
    """Clients of ours in total order that wait for other starts than before."""
    rerouted: bool = False
    """The way to a pubend is another one."""

    def take(self, more: Changes) -> None:
        """One by one: nearly all are empty, and a message of a transaction has few of them."""
        if more.starts:
            self.starts += more.starts
        if more.restarted:
            self.restarted += more.restarted
        if more.started:
            self.started += more.started
        if more.switched:
            self.switched += more.switched
        if more.lifted:
            self.lifted += more.lifted
        if more.ended:
            self.ended += more.ended
        if more.retired:
            self.retired += more.retired
        if more.destroyed:
            self.destroyed += more.destroyed
        if more.awaiting:
            self.awaiting |= more.awaiting
        self.rerouted = self.rerouted or more.rerouted


class Effects(Changes):
    """What a fact caused, in order: messages to neighbours, and answers to local clients; and what
    changes with it."""

    messages: list[tuple[str, RoutingMessage]] = []
    completed: list[Completed] = []


class Obligations:
    def __init__(self, state: RoutingState) -> None:
        self.state = state
        self._effects = Effects()

    def abandon(self, op: OpId) -> None:
        """Nobody waits for this any more; the operation itself stays as it is."""
        self.state.waits.pop(op, None)

    # ── echoes ───────────────────────────────────────────────────────────────────────────

    def _echo(self, message: Echo, source: Hop) -> None:
        wait = self.state.waits.get(message.op)
        if wait is not None:  # else withdrawn or abandoned meanwhile
            self._discharge(wait, self.state.bits.bit(source))

    def _await(
        self,
        message: Advertise | Subscribe | Unadvertise | Unsubscribe,
        what: str,
        source: Hop,
        missing: int,
        *,
        probe: bool = False,
    ) -> None:
        if isinstance(message, _ADDITIONS):
            op = message.id if message.echo else None
            filter = message.filter if probe else None
        else:
            op, filter = message.op, None
        if op is None:
            return
        target = message.target if type(message) is Unsubscribe else None
        if not missing and target not in self.state.withdrawals:
            self._echo_at_once(op, source)  # as `_settle` would, for an obligation that is none
            return
        wait = Wait(op, what, source, missing, filter, target)
        self.state.waits[op] = wait
        if not missing:
            self._settle(wait)

    def _discharge(self, wait: Wait, bit: int) -> None:
        if not wait.missing & bit:
            return
        wait.missing &= ~bit
        if not wait.missing:
            self._settle(wait)

    def _settle(self, wait: Wait) -> None:
        """All neighbours have echoed; a removal may still have to wait for a withdrawal."""
        state = self.state
        if wait.what == "unsubscribe" and wait.target in state.withdrawals:
            state.withdrawals[wait.target].held.append(wait.op)
        else:
            del state.waits[wait.op]
            self._complete(wait)

    def _complete(self, wait: Wait) -> None:
        if wait.what == "withdraw":
            self._withdrawn(wait)
        else:
            self._echo_at_once(wait.op, wait.requester)

    def _echo_at_once(self, op: OpId | None, requester: Hop) -> None:
        if op is None:
            return
        if requester.is_broker:
            self._send(requester.name, Echo(op))
        else:
            self._effects.completed.append(Completed(op))

    def _withdrawn(self, wait: Wait) -> None:
        """A withdrawal is complete; if it was the last one, a removal may have waited for it."""
        state, target = self.state, wait.target
        assert target is not None
        withdrawal = state.withdrawals[target]
        del withdrawal.under_way[wait.op]
        if withdrawal.under_way:
            return
        del state.withdrawals[target]
        for op in withdrawal.held:
            held = state.waits.pop(op, None)
            if held is not None:  # else nobody waits any more
                self._complete(held)

    # ── effects ──────────────────────────────────────────────────────────────────────────

    def _send(self, neighbour: str, message: RoutingMessage) -> None:
        self._effects.messages.append((neighbour, message))

    def _bit(self, neighbour: str) -> int:
        return self.state.bits.bit(Hop.broker(neighbour))

    def _take_effects(self) -> Effects:
        effects, self._effects = self._effects, Effects()
        return effects
