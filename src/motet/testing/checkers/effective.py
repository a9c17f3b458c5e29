"""At the instant a broker says "effective", it is.

A subscription: every broker on the way to every advertiser whose overlapping advertisement was
effective before has it, or one that covers it from the same direction. An advertisement: every
broker has it, and every overlapping subscription that was effective before, or was held by its
own broker before the advertisement was asked for, is at every broker on the way. A removal: no
broker has it any more.

Not counted: what is being taken back, whose client is not surely there, what was in force at a
broker that has lost its state since, and paths on which one did so after the later of the two was
asked for: that news may still be on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from motet.broker.core import BrokerCore
from motet.model import Filter, covers, overlap
from motet.protocol.routing.state import Table
from motet.testing.checkers.verdict import Verdict
from motet.testing.history import ENDLESS, History, Operation


class Checker:
    """Asked at every claim, because only then the tables can be looked at."""

    def __init__(self, history: History, tables_of: Callable[[str], BrokerCore | None]) -> None:
        self.verdict = Verdict("effective")
        self._history = history
        self._tables_of = tables_of
        self._effective: dict[str, list[Operation]] = {"advertise": [], "subscribe": []}
        self._held: list[tuple[float, Operation]] = []
        """Subscriptions that hold at their own broker, and since when."""
        self._overlaps: dict[tuple[Filter, Filter], bool] = {}

    def claimed(self, operation: Operation, now: float) -> None:
        if operation.effective_at < inf:
            return  # the answer was sent again
        if operation.kind == "subscribe":
            self._held.append((now, operation))
        if not operation.wait:
            return
        operation.effective_at = now
        if operation.ended_at < inf or operation.doubted_position < ENDLESS:
            return
        if operation.kind == "subscribe":
            for advertisement in self._standing("advertise"):
                self._check_pair(operation, advertisement)
        else:
            self._check_flood(operation)
            before = [s for at, s in self._held if at <= operation.requested_at]
            attracted = dict.fromkeys((*self._standing("subscribe"), *before))
            for subscription in attracted:
                if self._stands(subscription):
                    self._check_pair(subscription, operation)
        self._effective[operation.kind].append(operation)

    def removed(self, operation: Operation, now: float) -> None:
        """A broker says that an advertisement or subscription is gone, wherever it was."""
        target = operation.target
        if not operation.wait or target is None:
            return
        tree, home = self._history.tree, target.session.broker
        for broker in tree.brokers:
            core = self._tables_of(broker)
            if core is None or self._forgotten(tree.path(home, broker), target.requested_at):
                continue
            state = core.durable.routing.state
            is_subscription = target.kind == "subscribe"
            table = state.subscriptions if is_subscription else state.advertisements
            self.verdict.expect(
                target.id not in table,
                "{} was called gone at {:.4f} s, but {} still has it",
                target,
                now,
                broker,
            )

    # ── who counts ───────────────────────────────────────────────────────────────────────

    def _standing(self, kind: str) -> list[Operation]:
        known = self._effective[kind]
        known[:] = [operation for operation in known if operation.ended_at == inf]
        return [operation for operation in known if self._stands(operation)]

    def _stands(self, operation: Operation) -> bool:
        trouble = self._history.disturbed[operation.session.instance]
        return operation.ended_at == inf and not trouble.open

    def _forgotten(self, path: tuple[str, ...], since: float) -> bool:
        return self._history.forgot(path, since)

    # ── what must hold ───────────────────────────────────────────────────────────────────

    def _check_pair(self, subscription: Operation, advertisement: Operation) -> None:
        assert subscription.filter is not None
        assert advertisement.filter is not None
        pair = (subscription.filter, advertisement.filter)
        if pair not in self._overlaps:
            self._overlaps[pair] = overlap(*pair)
        if not self._overlaps[pair]:
            return
        path = self._history.tree.path(subscription.session.broker, advertisement.session.broker)
        later = max(subscription.requested_at, advertisement.requested_at)
        if (
            self._forgotten(path[:1], subscription.requested_at)
            or self._forgotten(path[-1:], advertisement.requested_at)
            or self._forgotten(path, later)
        ):
            return
        for broker in path:
            self._check_table(subscription, broker, advertisement)

    def _check_flood(self, advertisement: Operation) -> None:
        tree, home = self._history.tree, advertisement.session.broker
        for broker in tree.brokers:
            if not self._forgotten(tree.path(home, broker), advertisement.requested_at):
                self._check_table(advertisement, broker, "everybody")

    def _check_table(self, operation: Operation, broker: str, towards: object) -> None:
        core = self._tables_of(broker)
        if core is None:
            return  # down; what its journal keeps is the replay checker's business
        state = core.durable.routing.state
        is_subscription = operation.kind == "subscribe"
        table = state.subscriptions if is_subscription else state.advertisements
        self.verdict.expect(
            self._is_in(table, operation, broker),
            "{} was called effective at {:.4f} s, but {}, on its way to {}, does not have it",
            operation,
            operation.effective_at,
            broker,
            towards,
        )

    def _is_in(self, table: Table, operation: Operation, broker: str) -> bool:
        source = self._history.source_at(broker, operation.session)
        entry = table.get(operation.id)
        if entry is not None:
            return entry.source == source
        if not self._history.covering or operation.filter is None:
            return False
        return any(covers(e.filter, operation.filter) for e in table.from_source(source))
