"""What must not leave before others are done with it: advertisements, and ended subscriptions.

An advertisement that was taken back stays until all that was published under it has arrived. A
subscription that a transaction has ended stays until it has had all that it is owed. Soft code:
after a restart both are found again in the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from motet.broker import facts
from motet.model import OpId
from motet.protocol.contract import Output
from motet.protocol.delivery.state import Effects
from motet.protocol.sinks.state import StagedBlock

if TYPE_CHECKING:
    from motet.broker.consequences import Consequences
    from motet.broker.core import BrokerCore
    from motet.broker.streams import Streams
    from motet.protocol.transactions.state import Block


class Leaving:
    def __init__(self, streams: Streams, core: BrokerCore) -> None:
        self._streams = streams
        self._core = core
        self.last_ticks: dict[tuple[str, str], int] = {}
        """By client and epoch, of what they have published; at the latest, if before this life. Of
        what they have published in transactions the durable state knows."""
        self.retiring: dict[OpId, int] = {}
        """Retired advertisements, each with the last tick that was published under it."""
        self.ending: dict[OpId, None] = {}
        """Subscriptions that a transaction has ended."""
        self._unacknowledged: dict[str, dict[OpId, None]] = {}
        """By client: others like them, which cannot go before it acknowledges more. They are many
        if there are many transactions, so nobody looks at them before that."""

    def look(self, out: Output, now: float) -> None:
        if self.retiring:
            self.let_go(out, now)
        if self.ending:
            self.let_pass(out, now)

    # ── ended subscriptions ──────────────────────────────────────────────────────────────

    def let_pass(self, out: Output, now: float, some: Iterable[OpId] | None = None) -> None:
        """They go once the decision is settled everywhere, so that all cuts are known that there
        will be, and their clients are done with everything up to them. `some`: only these have
        come any further."""
        known = list(self.ending) if some is None else [op for op in some if op in self.ending]
        if not known:
            return
        routing, machine = self._core.durable.routing.state, self._streams.machine
        active = self._core.durable.transactions.state.active.values()
        undecided = {each.op for one in active for each in one.decide.ended}
        gone: list[OpId] = []
        for op in known:
            if op in undecided:
                continue
            passed = machine.passed(op, routing.ends.get(op, ()))
            if passed:
                gone.append(op)
            elif passed is None:
                self.ending.pop(op, None)
                self._unacknowledged.setdefault(op.client, {})[op] = None
        for op in gone:  # first: each of them changes the tables, which leads back to here
            del self.ending[op]
        for op in gone:
            self._core._journal(facts.SubscriptionOver(op), out, now)

    def changed(self, then: Consequences, out: Output, now: float) -> None:
        """Decisions have settled, or cuts are known."""
        if then.lifted or then.destroyed or then.rerouted:
            self.look_again()
        if then.settled or then.ending or then.switched:
            some = dict.fromkeys(then.settled)
            some |= dict.fromkeys(then.ending)
            some |= {each.op: None for each in then.switched}
            for op in some:
                if op in self._unacknowledged.get(op.client, ()):
                    self.look_again(op.client)
            if self.ending:
                self.let_pass(out, now, some)
        if self.retiring:
            self.let_go(out, now)

    def acknowledged(self, client: str, out: Output, now: float) -> None:
        """A client is done with more than before."""
        some = self._unacknowledged.pop(client, None)
        if some:
            self.ending |= some
            self.let_pass(out, now, some)

    def look_again(self, client: str | None = None) -> None:
        """What somebody, or this client, has been given and has to acknowledge is different now."""
        for name in [client] if client is not None else list(self._unacknowledged):
            self.ending |= self._unacknowledged.pop(name, {})

    def is_over(self, op: OpId) -> None:
        self.ending.pop(op, None)
        self._unacknowledged.get(op.client, {}).pop(op, None)

    # ── retired advertisements ───────────────────────────────────────────────────────────

    def retire(self, ops: list[OpId], out: Output, now: float) -> None:
        """They stay until all that was published under them has arrived."""
        for op in ops:
            known = self.last_ticks.get((op.client, op.epoch))
            last = self._core.durable.lost_with(op.epoch) if known is None else known
            in_blocks = self._core.durable.transactions.state.published
            self.retiring[op] = max(last, in_blocks.get(op.client, 0))
        if ops:
            self._ask_for_acks(out, now)

    def published(self, ticks: list[int], out: Output, now: float) -> None:
        self.let_go(out, now)
        # Only now can those be acknowledged that were on their way into the log.
        if ticks and any(ticks[0] <= tick <= ticks[-1] for tick in self.retiring.values()):
            self._ask_for_acks(out, now)

    def published_in(self, block: Block | StagedBlock) -> None:
        """What a transaction has published under advertisements has yet to arrive."""
        if isinstance(block, StagedBlock):
            last = {block.client: block.last_tick}
        else:
            last = {event.client: tick for tick, event in enumerate(block.events, block.tick + 1)}
        for op in self.retiring:
            if op.client in last:
                self.retiring[op] = last[op.client]

    def _ask_for_acks(self, out: Output, now: float) -> None:
        self.let_go(out, now)
        if self.retiring:
            effects = Effects()
            self._streams.machine.expect(self._streams.pubend, effects)
            self._streams.carry(effects, out, now)

    def let_go(self, out: Output, now: float) -> None:
        upto = self._streams.machine.acknowledged(self._streams.pubend)
        durable = self._core.durable
        staged = durable.transactions.staging() | durable.sinks.publishing()
        for op, tick in list(self.retiring.items()):
            if op.client in staged:
                continue  # a transaction has yet to publish under it
            if tick <= upto and self.retiring.pop(op, None) is not None:
                over = facts.AdvertisementOver(op, self._streams.last_tick)
                self._core._journal(over, out, now)
                self.forget((op.client, op.epoch), out)

    def forget(self, session: tuple[str, str], out: Output) -> None:
        """Nothing comes any more from a session that is over, unless an advertisement of it still
        needs to know what was published under it."""
        durable = self._core.durable
        if durable.sessions.current(*session) is not None:
            return
        retired = ((op.client, op.epoch) for op in durable.routing.state.retired)
        if session in self.last_ticks and session not in retired:
            del self.last_ticks[session]
            out.forgotten.append(session)
