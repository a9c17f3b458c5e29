"""Durable state of sessions."""

from __future__ import annotations

from msgspec import Struct, field

from motet.protocol.session.messages import Failed


class Session(Struct):
    """One epoch of one client. `requests` is the sequence of the last request received."""

    client: str
    epoch: str
    requests: int = 0
    unanswered: dict[int, None] = field(default_factory=dict)
    failures: dict[int, Failed] = field(default_factory=dict)
    """Answers that were not `Done`, kept as long as the client may still ask for them."""
    instance: str = ""
    """Which of the processes that use this id has opened or resumed it."""
