"""Bugs in what outlives the processes of a client."""

from __future__ import annotations

from typing import Any

from motet.broker.durable import Durable
from motet.broker.greeting import Greeting
from motet.client.machine import ClientMachine
from motet.client.window import Window
from motet.protocol.delivery.position import Position
from motet.protocol.session.state import Session
from motet.testing.bugs.catalogue import mutation, nothing
from motet.testing.patches import Patch

LASTING: dict[str, Any] = {"durable": 0.6, "keep_s": 60.0}
RELAYS: dict[str, Any] = {
    "durable": 1.0,
    "sync": 4.0,
    "clients": 5,
    "chaos_s": 5.0,
    "menu": {"twin_client": 6.0, "pace_s": 0.25},
}
"""One process takes over from another while the log is slow."""


@mutation("delivery", "duplicates", first=15, **LASTING)
def own_cursors_are_ignored() -> list[Patch]:
    """A process does not say where its application has written down that it is."""
    original = ClientMachine.__init__

    def forgetful(self: Any, client: str, **options: Any) -> None:
        given: dict[str, int] | None = None if options.get("cursors") is None else {}
        original(self, client, **{**options, "cursors": given})

    return [Patch(ClientMachine, "__init__", forgetful)]


@mutation("delivery", "sessions", **LASTING)
def anybody_ends_a_durable_session() -> list[Patch]:
    """Whoever connects under the name of a durable client gets a new session."""
    return [Patch(Greeting, "_objection_to", nothing)]


@mutation("delivery", "sessions", "duplicates", "answers", first=15, **LASTING)
def a_replaced_process_takes_its_session_back() -> list[Patch]:
    """A process that lost its connection before it was replaced is let in again."""
    original = Durable.newer_than

    def lenient(self: Any, client: str, resume: str | None, instance: str) -> str | None:
        newer = original(self, client, resume, instance)
        return None if newer == resume else newer

    return [Patch(Durable, "newer_than", lenient)]


@mutation("delivery", "sessions", **LASTING)
def a_durable_session_ends_with_its_lease() -> list[Patch]:
    """Nobody looks at how long a session is to be kept."""

    def soon(self: Any, now: float, lease_s: float) -> float:
        del self
        return now + lease_s / 10

    return [Patch(Session, "expires_at", soon)]


@mutation("delivery", "soundness", "invariants", "answers", keep_s=60.0, **RELAYS)
def publications_are_counted_from_what_was_answered() -> list[Patch]:
    """A new process does not skip the numbers of what is on its way into the log."""

    def hasty(self: Any, frame: Any) -> None:
        self._base = self.settled - frame.published
        self.answered = frame.published

    return [Patch(Window, "take_over", hasty)]


@mutation("delivery", "exactly-once", since=0.5, durable=0.0)
def the_past_is_asked_of_anybody() -> list[Patch]:
    """What is older than a subscription comes from whoever remembers it, filtered for others."""
    return [Patch(Position, "reach", nothing)]
