"""Bugs on the path of events."""

from __future__ import annotations

from typing import Any

from motet.broker.core import BrokerCore
from motet.broker.router import Router
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Published
from motet.testing.bugs.catalogue import mutation, nothing
from motet.testing.patches import Patch


@mutation("calm", "duplicates", "settles")
def publications_go_back() -> list[Patch]:
    """A broker also sends an event where it came from."""

    def boomerang(self: Any, batch: Any, neighbour: str, out: Any) -> None:
        del neighbour
        self._route(batch, ~0, out)

    return [Patch(Router, "forward", boomerang)]


@mutation("calm", "soundness")
def nothing_is_refused() -> list[Patch]:
    """Events outside the advertised space are accepted and routed."""

    def lenient(self: Any, client: str, first: int, bodies: Any, out: Any) -> Published:
        batch = [Publication(client, number, body) for number, body in enumerate(bodies, first)]
        self._route(batch, ~0, out)
        return Published(first + len(bodies) - 1)

    return [Patch(Router, "publish", lenient)]


@mutation("calm", "invariants", "soundness", "completeness")
def plans_go_stale() -> list[Patch]:
    """The router keeps its plans when the tables change."""
    return [Patch(Router, "tables_changed", nothing)]


@mutation(
    "clients",
    "soundness",
    action_s=0.008,
    sync=1.0,
    lease_s=15.0,
    weights=(80.0, 8.0, 4.0, 4.0, 6.0, 1.0, 1.5),
    menu={"drop_client": 8.0, "pace_s": 0.2},
)
def refusals_are_lost_with_the_connection() -> list[Patch]:
    """A client that resumes hears what was handled, but not what was refused."""
    return [Patch(BrokerCore, "_remember_refusals", nothing)]
