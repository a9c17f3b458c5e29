"""Bugs in what is written down, and in what must wait for it."""

from __future__ import annotations

from functools import partial
from typing import Any

from motet.broker import facts, rebuild
from motet.broker.core import BrokerCore
from motet.broker.image import parts_of
from motet.protocol.link.machine import Ledger, Link
from motet.testing.brokers import SimulatedBroker
from motet.testing.bugs.catalogue import mutation
from motet.testing.patches import Patch


@mutation("crash", "invariants", "routing", "answers", "sessions", sync=1.0)
def acknowledged_before_durable() -> list[Patch]:
    """Frames leave before the facts they rest on are on disk."""

    def at_once(self: Any, number: int, frame: Any, own: int) -> None:
        del own
        end = self.ends.get(number)
        if end is not None and not end.ended:
            end.ended = type(frame).__name__ == "Goodnight"
            self._release(end, frame)

    return [Patch(SimulatedBroker, "_put", at_once)]


@mutation("crash", "completeness", "invariants", "order", sync=1.0)
def frames_overtake_what_waits_for_the_disk() -> list[Patch]:
    """On one connection, what needs no sync passes what still waits for one."""
    original = SimulatedBroker._put

    def pushy(self: Any, number: int, frame: Any, own: int) -> None:
        end = self.ends.get(number)
        if end is not None and not end.ended and not own and end.held:
            self._release(end, frame)
        else:
            original(self, number, frame, own)

    return [Patch(SimulatedBroker, "_put", pushy)]


@mutation("crash", "replay")
def journal_omits_session_ends() -> list[Patch]:
    """One kind of fact is applied but not written down."""
    original = BrokerCore._journal

    def sloppy(self: Any, body: Any, out: Any, now: float) -> None:
        original(self, body, out, now)
        if isinstance(body, facts.SessionEnded):
            out.persist.pop()

    return [Patch(BrokerCore, "_journal", sloppy)]


@mutation("crash", "replay")
def snapshot_keeps_no_outbox() -> list[Patch]:
    """What no neighbour has acknowledged yet is missing from a snapshot."""
    return [Patch(rebuild, "parts_of", partial(parts_of, outboxes=False))]


@mutation("crash", "replay", "routing", "invariants")
def durable_step_reads_the_link() -> list[Patch]:
    """Control for a neighbour whose link is down is not queued: soft state steers a fact."""
    original, make = Ledger.enqueue, Link.__init__
    links: dict[int, Link] = {}

    def remember(self: Any, broker: str, ledger: Ledger, *options: Any) -> None:
        make(self, broker, ledger, *options)
        links[id(ledger)] = self

    def lazy(self: Any, message: Any, **options: Any) -> None:
        link = links.get(id(self))
        if link is None or link.up:
            original(self, message, **options)

    return [Patch(Ledger, "enqueue", lazy), Patch(Link, "__init__", remember)]


@mutation("crash", "replay", "invariants", "routing", "settles")
def publications_are_numbered() -> list[Patch]:
    """A publication takes a number of the link's control, which no journal knows of."""
    original = Link.publish

    def counting(self: Any, batch: Any, out: Any) -> None:
        if self.up and self.ledger.record.incarnation:
            self.ledger.record.sent += 1
            self.soft.transmitted += 1
        original(self, batch, out)

    return [Patch(Link, "publish", counting)]
