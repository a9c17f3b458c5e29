"""Small hand-made histories for the tests of checkers."""

from __future__ import annotations

from typing import Any

from motet.audit.records import DeliveryRecord, EventRecord, OperationRecord, SessionRecord
from motet.model import Filter
from motet.testing.history import History
from motet.testing.topology import Tree

HOP_S = 0.01


class Past:
    """A chain A-B-C, and whatever a test says happened on it."""

    def __init__(self, *edges: tuple[str, str], covering: bool = False) -> None:
        self.history = History(Tree(edges or (("A", "B"), ("B", "C"))), covering, HOP_S)

    def session(self, client: str, broker: str, **more: Any) -> SessionRecord:
        instance = more.pop("instance", len(self.history.sessions))
        epoch = more.pop("epoch", f"{broker}-{len(self.history.sessions) + 1}")
        session = SessionRecord(client, instance, epoch, broker, 0.0, **more)
        self.history.sessions.append(session)
        self.history.living.append(session)
        return session

    def ask(
        self, session: SessionRecord, kind: str, text: str, at: float = 0.0, **more: Any
    ) -> OperationRecord:
        """An operation that was effective a moment later, unless the test says otherwise."""
        session.sent += 1
        number = len(session.operations) + 1
        known = {"effective_at": at + 0.1, "answered_at": at + 0.1, "answer": "Done"} | more
        operation = OperationRecord(
            session, number, number, kind, Filter.parse(text), None, True, 10.0, session.sent, at
        )
        for name, value in known.items():
            setattr(operation, name, value)
        session.operations[number] = operation
        return operation

    def publish(
        self, session: SessionRecord, at: float, fate: str = "accepted", **what: Any
    ) -> EventRecord:
        session.sent += 1
        number = len(self.history.events)
        event = EventRecord(
            number, session.client, session.instance, what, session, session.sent, at, fate
        )
        self.history.events.append(event)
        return event

    def deliver(
        self, operation: OperationRecord | None, event: EventRecord | None, at: float = 9.0
    ) -> None:
        instance = operation.session.instance if operation else 0
        handle = operation.handle if operation else 0
        publisher = event.client if event else "nobody"
        delivery = DeliveryRecord(at, instance, handle, operation, event, publisher)
        self.history.deliveries.append(delivery)
