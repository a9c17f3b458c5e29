"""What was published after it was effective arrives, where nothing was broken on its path.

Best-effort events; `exactly_once` is about the others.

An event is owed to a subscription that it matches if both the subscription and an advertisement
of the publisher's session that carries it were effective before it was sent, its withdrawal of
the advertisement was not sent before it, and the broker accepted it; and if, from the moment it
was sent until the latest moment it could arrive,
  - the subscription's end had not begun, and its client was there and reading,
  - no broker on the path was down, and no link on it had trouble;
and if no broker on the path has lost its state, and no two of them what they knew of each other,
since the older of the two was requested.

Once everything was quiet, all that is in force counts as effective, and no excuse is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from motet.model import Filter
from motet.testing.checkers.verdict import Verdict
from motet.testing.history import Event, History, Operation


def check(history: History) -> Verdict:
    return _Check(history).run()


@dataclass(slots=True)
class _Check:
    history: History
    verdict: Verdict = field(default_factory=lambda: Verdict("completeness"))
    _matches: dict[tuple[Filter, tuple[object, ...]], bool] = field(default_factory=dict)
    _lasting: set[Operation] = field(default_factory=set)

    def run(self) -> Verdict:
        history = self.history
        arrived = {(d.event, d.operation) for d in history.deliveries}
        self._lasting = set(history.in_force())
        by_filter: dict[Filter, list[Operation]] = {}
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
        event: Event,
        carriers: list[Operation],
        operations: list[Operation],
        arrived: set[tuple[Event | None, Operation | None]],
    ) -> None:
        for operation in operations:
            if any(self._is_owed(event, operation, carrier) for carrier in carriers):
                self.verdict.expect(
                    (event, operation) in arrived,
                    "{}, sent at {:.4f} s at {}, never came to {}",
                    event,
                    event.sent_at,
                    event.session.broker if event.session else "?",
                    operation,
                )

    def _since(self, operation: Operation) -> float:
        """From when on an operation is effective."""
        quiet = self.history.settled_at if operation in self._lasting else inf
        return min(operation.effective_at, quiet)

    def _carriers(self, event: Event) -> list[Operation]:
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

    def _is_owed(self, event: Event, operation: Operation, carrier: Operation) -> bool:
        history, sent_at = self.history, event.sent_at
        if self._since(operation) > sent_at:
            return False
        if sent_at >= history.settled_at:
            return operation in self._lasting and carrier in self._lasting
        path = history.tree.path(carrier.session.broker, operation.session.broker)
        latest = sent_at + (len(path) + 1) * history.hop_s
        if operation.ended_at <= latest:
            return False
        disturbed = history.disturbed
        if disturbed[operation.session.instance].meets(sent_at, latest):
            return False
        older = min(operation.requested_at, carrier.requested_at)
        if history.forgot(path, older, latest):
            return False
        if any(disturbed[broker].meets(sent_at, latest) for broker in path):
            return False
        return not any(
            disturbed[edge].meets(sent_at, latest)
            for edge in history.tree.edges_between(path[0], path[-1])
        )

    def _match(self, wanted: Filter, event: Event) -> bool:
        key = (wanted, tuple(event.attributes.items()))
        known = self._matches.get(key)
        if known is None:
            known = self._matches[key] = wanted.matches(event.attributes)
        return known
