"""An event that is published after its subscription is effective arrives, if its path is intact.

This is about best-effort events; `exactly_once` is about the others.

An event is owed to a matching subscription if the broker accepted it, if the subscription and a
matching advertisement of the publisher's session were effective before it was sent, and if the
advertisement had not been withdrawn before it.

Excused: between sending and the latest possible arrival, the end of the subscription had begun, its
client was away or not reading, a broker on the path was down, or a link on it had trouble; or a
broker on the path has lost its state, or a link on it was given up, since the older of the two
operations was requested. That a client moves, or both do, excuses nothing. But brokers keep events
for a client that is on its way only while nothing breaks: what was broken since the client was sent
on counts, too, also for events that come soon after the client: they wait for those that follow it,
and their subscription, or the broker that keeps them, may end meanwhile. And what a client
publishes may wait until it is where it goes, or stays: then the event counts as sent when it is
answered.

Once everything is quiet, all that is in force counts as effective, and nothing is excused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from motet.audit.records import EventRecord, OperationRecord, SessionRecord
from motet.model import Filter
from motet.protocol.mobility.strays import LAST_S
from motet.testing.checkers.result import CheckResult
from motet.testing.history import History
from motet.testing.topology import Edge


def check(history: History) -> CheckResult:
    return _CompletenessCheck(history).run()


@dataclass(slots=True)
class _CompletenessCheck:
    history: History
    verdict: CheckResult = field(default_factory=lambda: CheckResult("completeness"))
    _matches: dict[tuple[Filter, tuple[object, ...]], bool] = field(default_factory=dict)
    _lasting: set[OperationRecord] = field(default_factory=set)
    _moving: dict[str, float] = field(default_factory=dict)
    """By client: when somebody first wanted to move it."""

    def run(self) -> CheckResult:
        history = self.history
        arrived = {(d.event, d.operation) for d in history.deliveries}
        self._lasting = set(history.in_force())
        wishes = [(wish.client, wish.at) for wish in history.moves]
        for client, at in (*wishes, *((wish.client, wish.at) for wish in history.orders)):
            self._moving[client] = min(at, self._moving.get(client, inf))
        by_filter: dict[Filter, list[OperationRecord]] = {}
        for operation in history.operations("subscribe"):
            if operation.filter is not None and self._since(operation) < inf:
                by_filter.setdefault(operation.filter, []).append(operation)
        for event in history.events:
            if event.session is None or event.fate != "accepted" or event.sure:
                continue
            carriers = self._carriers(event)
            if carriers:
                for wanted, operations in by_filter.items():
                    if self._match(wanted, event):
                        self._check_event(event, carriers, operations, arrived)
        return self.verdict

    def _check_event(
        self,
        event: EventRecord,
        carriers: list[OperationRecord],
        operations: list[OperationRecord],
        arrived: set[tuple[EventRecord | None, OperationRecord | None]],
    ) -> None:
        for operation in operations:
            if not any(self._is_owed(event, operation, carrier) for carrier in carriers):
                continue
            if not self.verdict.holds((event, operation) in arrived):
                home = event.session.home if event.session else "?"
                self.verdict.violated(
                    f"{event}, sent at {event.sent_at:.4f} s at {home}, was never delivered to "
                    f"{operation}"
                )

    def _since(self, operation: OperationRecord) -> float:
        """When an operation became effective."""
        quiet = self.history.settled_at if operation in self._lasting else inf
        return min(operation.effective_at, quiet)

    def _carriers(self, event: EventRecord) -> list[OperationRecord]:
        assert event.session is not None
        return [
            operation
            for operation in event.session.operations.values()
            if operation.kind == "advertise"
            and operation.filter is not None
            and operation.position < event.position < operation.ended_position
            and self._since(operation) <= event.sent_at
            and self._match(operation.filter, event)
        ]

    def _is_owed(
        self, event: EventRecord, operation: OperationRecord, carrier: OperationRecord
    ) -> bool:
        history, sent_at = self.history, event.sent_at
        if self._since(operation) > sent_at:
            return False
        if sent_at >= history.settled_at:
            return operation in self._lasting and carrier in self._lasting
        taken_at = sent_at
        if event.client in self._moving and self._moving[event.client] <= event.settled_at:
            taken_at = event.settled_at
        widest_s = (len(history.tree.brokers) + 1) * history.hop_s
        homes = [
            *carrier.session.homes(sent_at, taken_at + widest_s),
            *operation.session.homes(sent_at, taken_at + widest_s),
        ]
        path = history.tree.span(homes)
        way_s = (len(path) + 1) * history.hop_s
        latest = taken_at + way_s
        travels = history.travels[operation.session.instance]
        arrived_at = travels.end_of(sent_at, latest)
        if arrived_at > latest:  # the events that follow a client come behind its welcome
            latest = arrived_at + way_s
        earliest = travels.begin_of(sent_at, latest)
        if operation.ended_at <= latest:
            return False
        disturbed = history.disturbed
        if disturbed[operation.session.instance].meets(sent_at, latest):
            return False
        older = min(operation.requested_at, carrier.requested_at)
        if history.forgot(path, older, latest):
            return False
        if any(disturbed[broker].meets(earliest, latest) for broker in path):
            return False
        if any(
            disturbed[edge].meets(earliest, latest) for edge in history.tree.edges_within(homes)
        ):
            return False
        waits = self._waits(operation.session, sent_at, latest)
        return not waits or self._outlasts(operation, latest, latest + LAST_S)

    def _outlasts(self, operation: OperationRecord, since: float, until: float) -> bool:
        """Does the subscription last, undisturbed, until nobody waits any more?"""
        history, session = self.history, operation.session
        places = (session.instance, *session.homes(since, until))
        trouble = any(history.disturbed[place].meets(since, until) for place in places)
        moves = history.travels[session.instance].meets(since, until)
        return operation.ended_at > until and not (trouble or moves)

    def _waits(self, session: SessionRecord, sent_at: float, latest: float) -> bool:
        """Has the client just moved here, on a path that has broken since?"""
        history = self.history
        travels = history.travels[session.instance]
        if not travels.meets(sent_at - LAST_S, sent_at):
            return False
        begun = travels.begin_of(sent_at - LAST_S, sent_at)
        homes = session.homes(begun, latest)
        places: list[str | Edge] = [*history.tree.span(homes), *history.tree.edges_within(homes)]
        return any(history.disturbed[place].meets(begun, latest) for place in places)

    def _match(self, wanted: Filter, event: EventRecord) -> bool:
        key = (wanted, tuple(event.attributes.items()))
        known = self._matches.get(key)
        if known is None:
            known = self._matches[key] = wanted.matches(event.attributes)
        return known
