"""Bugs in the journal, and in output that must wait for it."""

from __future__ import annotations

from functools import partial
from typing import Any

from motet.broker.core import rebuild
from motet.broker.core.image import parts_of
from motet.broker.driver.pubend import LettingGo
from motet.broker.folder.journal import LoggedJournal
from motet.protocol.link.machine import Ledger, Link
from motet.protocol.session.facts import SessionEnded
from motet.testing.brokers import SimulatedBroker
from motet.testing.bugs.catalogue import Patch, around, mutation, replaces


def unwritten(kind: type) -> Patch:
    """Apply facts of this kind, but do not journal them."""
    original = LoggedJournal.append

    def sloppy(self: Any, written: Any) -> Any:
        return original(self, [fact for fact in written if type(fact.body) is not kind])

    return Patch(LoggedJournal, "append", sloppy)


@mutation("crash", "invariants", "routing", "answers", "sessions", sync=1.0)
@replaces(SimulatedBroker, "_put")
def acknowledged_before_durable(self: Any, number: int, frame: Any, own: int) -> None:
    """Frames leave before the facts that they depend on are on disk."""
    del own
    end = self.ends.get(number)
    if end is not None and not end.ended:
        end.ended = type(frame).__name__ == "Farewell"
        self._release(end, frame)


@mutation("crash", "completeness", "invariants", "order", sync=1.0)
@around(SimulatedBroker, "_put")
def frames_overtake_what_waits_for_the_disk(
    original: Any, self: Any, number: int, frame: Any, own: int
) -> None:
    """On one connection, frames that need no sync overtake frames that wait for one."""
    end = self.ends.get(number)
    if end is not None and not end.ended and not own and end.held:
        self._release(end, frame)
    else:
        original(self, number, frame, own)


@mutation("crash", "replay")
def journal_omits_session_ends() -> list[Patch]:
    """One kind of fact is applied but not journaled."""
    return [unwritten(SessionEnded)]


@mutation("crash", "replay")
def snapshot_keeps_no_outbox() -> list[Patch]:
    """A snapshot lacks the control messages that neighbours have not acknowledged."""
    return [Patch(rebuild, "parts_of", partial(parts_of, outboxes=False))]


@mutation("crash", "replay", "routing", "invariants")
def durable_step_reads_the_link() -> list[Patch]:
    """Control for a neighbour whose link is down is not queued: soft state decides a fact."""
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
@around(Link, "publish")
def publications_are_numbered(original: Any, self: Any, batch: Any, out: Any) -> None:
    """A publication takes a control number of its link that is not in the journal."""
    if self.up and self.ledger.record.incarnation:
        self.ledger.record.sent += 1
        self.soft.transmitted += 1
    original(self, batch, out)


DISKS: dict[str, Any] = {
    "menu": {
        "kill": 6.0,
        "disk_failure": 6.0,
        "pace_s": 0.3,
        "rough_links": 0.0,
        "log_failure": 0.0,
    }
    | dict.fromkeys(("amnesia", "cut", "stall", "clock_jump", "slow_client"), 0.0)
    | dict.fromkeys(("kill_client", "pause_client", "twin_client", "twin_elsewhere"), 0.0),
    "narrow": True,
    "mates": {},
    "clients": 7,
    "chaos_s": 6.0,
    "action_s": 0.015,
    "process_s": 0.02,
    "lease_s": 15.0,
    "local": 0.0,
    "timeouts_s": (10.0,),
    "sync": 6.0,
    "weights": (80.0, 8.0, 6.0, 1.0, 1.0, 0.0, 1.0),
    "rewiring": False,
    "kept_events": None,
} | dict.fromkeys(("durable", "since", "total_order"), 0.0)
"""Disks are slow, and brokers die before facts are durable; there are no other faults."""


@mutation("delivery", "exactly-once", first=5, **{**DISKS, "clients": 4})
def log_drops_ticks_before_facts_are_durable() -> list[Patch]:
    """A pubend drops ticks from its log although the fact that all clients have acknowledged them
    can still be lost in a crash."""
    return [Patch(LettingGo, "upto", lambda _, done_with: done_with)]
