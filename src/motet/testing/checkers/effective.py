"""When a broker says "effective", the operation is effective at that instant.

A subscription: every broker on the path to every advertiser whose overlapping advertisement was
effective before has it, or one that covers it from the same direction. An advertisement: every
broker has it; and every overlapping subscription that was effective before, or in force at its own
broker before the advertisement was requested, is at every broker on the path. A removal: no broker
has the entry any more.

Not counted: operations that are being withdrawn, whose client may be away or is moving just then,
or whose broker has lost its state since; those of a session whose client is still on its way to it,
if the clock has jumped there since it arrived; and paths on which a broker lost its state after the
later of the two was requested, because that news may still be on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from motet.audit.records import ENDLESS, OperationRecord, SessionRecord
from motet.model import Filter, covers, overlap
from motet.protocol.routing.state import Table
from motet.testing.checkers.result import BrokerState, CheckResult
from motet.testing.history import History


class Checker:
    """Called at every claim, because the tables can only be inspected at that instant."""

    def __init__(self, history: History, tables_of: Callable[[str], BrokerState | None]) -> None:
        self.verdict = CheckResult("effective")
        self._history = history
        self._tables_of = tables_of
        self._effective: dict[str, list[OperationRecord]] = {"advertise": [], "subscribe": []}
        self._held: list[tuple[float, OperationRecord]] = []
        """Subscriptions in force at their own broker, and since when."""
        self._overlaps: dict[tuple[Filter, Filter], bool] = {}

    def claimed(self, operation: OperationRecord, now: float, made_at: float | None = None) -> None:
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
            self._check_flood(operation, now if made_at is None else made_at)
            before = [s for at, s in self._held if at <= operation.requested_at]
            attracted = dict.fromkeys((*self._standing("subscribe"), *before))
            for subscription in attracted:
                if self._stands(subscription):
                    self._check_pair(subscription, operation)
        self._effective[operation.kind].append(operation)

    def removed(self, operation: OperationRecord, now: float) -> None:
        """A broker says that an advertisement or subscription has been removed everywhere."""
        target = operation.target
        if not operation.wait or target is None:
            return
        tree, home = self._history.tree, target.session.home
        for broker in tree.brokers:
            core = self._tables_of(broker)
            if core is None or self._forgotten(tree.path(home, broker), target.requested_at):
                continue
            state = core.durable.routing.state
            is_subscription = target.kind == "subscribe"
            table = state.subscriptions if is_subscription else state.advertisements
            if not self.verdict.holds(target.id not in table):
                self.verdict.violated(
                    f"{target} was reported removed at {now:.4f} s, but {broker} still has it"
                )

    # ── selection ────────────────────────────────────────────────────────────────────────

    def _standing(self, kind: str) -> list[OperationRecord]:
        known = self._effective[kind]
        known[:] = [operation for operation in known if operation.ended_at == inf]
        return [operation for operation in known if self._stands(operation)]

    def _stands(self, operation: OperationRecord) -> bool:
        trouble = self._history.disturbed[operation.session.instance]
        if operation.ended_at < inf or trouble.open:
            return False
        return not self._may_have_ended(operation.session)

    def _may_have_ended(self, session: SessionRecord) -> bool:
        """Its client is on the way to it, and the clock has jumped there: its lease ends early."""
        history = self._history
        if len(session.stays) < 2 or not history.travels[session.instance].open:
            return False
        arrived_at = session.stays[-2].until
        return history.jumps[session.home].meets(arrived_at, inf)

    def _forgotten(self, path: tuple[str, ...], since: float) -> bool:
        return self._history.forgot(path, since)

    # ── conditions ───────────────────────────────────────────────────────────────────────

    def _check_pair(self, subscription: OperationRecord, advertisement: OperationRecord) -> None:
        assert subscription.filter is not None
        assert advertisement.filter is not None
        pair = (subscription.filter, advertisement.filter)
        if pair not in self._overlaps:
            self._overlaps[pair] = overlap(*pair)
        if not self._overlaps[pair]:
            return
        if any(is_on_its_way(each.session) for each in (subscription, advertisement)):
            return
        path = self._history.tree.path(subscription.session.home, advertisement.session.home)
        later = max(subscription.requested_at, advertisement.requested_at)
        if (
            self._forgotten(path[:1], subscription.requested_at)
            or self._forgotten(path[-1:], advertisement.requested_at)
            or self._forgotten(path, later)
        ):
            return
        for broker in path:
            self._check_table(subscription, broker, advertisement)

    def _check_flood(self, advertisement: OperationRecord, made_at: float) -> None:
        session = advertisement.session
        if is_on_its_way(session) and made_at < session.stays[-1].left_at:
            return  # the answer waited for the disk, and so did the decision of the move behind it
        tree, home = self._history.tree, advertisement.session.home
        for broker in tree.brokers:
            if not self._forgotten(tree.path(home, broker), advertisement.requested_at):
                self._check_table(advertisement, broker, "all brokers")

    def _check_table(self, operation: OperationRecord, broker: str, towards: object) -> None:
        core = self._tables_of(broker)
        if core is None:
            return  # it is down; the replay checker checks its journal
        state = core.durable.routing.state
        is_subscription = operation.kind == "subscribe"
        table = state.subscriptions if is_subscription else state.advertisements
        if not self.verdict.holds(self._is_in(table, operation, broker)):
            self.verdict.violated(
                f"{operation} was reported effective at {operation.effective_at:.4f} s, but "
                f"{broker}, on its way to {towards}, does not have it"
            )

    def _is_in(self, table: Table, operation: OperationRecord, broker: str) -> bool:
        source = self._history.source_at(broker, operation.session)
        entry = table.get(operation.id)
        if entry is not None:
            return entry.source == source
        if not self._history.covering or operation.filter is None:
            return False
        return any(covers(e.filter, operation.filter) for e in table.from_source(source))


def is_on_its_way(session: SessionRecord) -> bool:
    """Has a broker let go of it, and no other one taken it in yet?"""
    return bool(session.stays) and session.stays[-1].left_at < inf
