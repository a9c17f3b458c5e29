"""Bugs in retransmission, in the removal of duplicates, and in order."""

from __future__ import annotations

from typing import Any

from motet.protocol.link.durable import DurableLinks
from motet.protocol.link.machine import Ledger, Link
from motet.testing.bugs.catalogue import Patch, around, mutation, nothing, replaces


@mutation("lossy", "invariants", "routing")
@replaces(Ledger, "fresh")
def control_is_taken_twice(self: Any, control: Any) -> Any:
    """A control message that arrives twice is applied twice."""
    have = self.record.received
    return control.messages if control.first <= have + 1 else ()


@mutation("lossy", "routing", "invariants", "completeness", "answers")
@around(Ledger, "fresh")
def control_is_taken_out_of_order(original: Any, self: Any, control: Any) -> Any:
    """A gap in the control numbers is ignored."""
    if control.first > self.record.received + 1:
        self.record.received = control.first - 1
    return original(self, control)


@mutation("lossy", "invariants", "routing")
@around(Link, "drop")
def outbox_is_dropped_on_disconnect(original: Any, self: Any, out: Any) -> None:
    """Unacknowledged control messages are forgotten when the connection closes."""
    self.ledger.outbox.clear()
    original(self, out)


@mutation("crash", "invariants", "routing", outbox_bound=8)
def a_lost_link_goes_on_with_its_old_numbers() -> list[Patch]:
    """A broker that gives up a neighbour does not tell it so by a new life."""

    return [Patch(Ledger, "lose", lambda self, _: self.restart(0))]


@mutation("crash", "invariants", "routing", rewiring=True)
@around(DurableLinks, "_neighbours_changed")
def a_neighbour_that_comes_again_meets_an_old_life(original: Any, self: Any, fact: Any) -> None:
    """A neighbour that is removed from the topology and added again meets the life it knew."""
    known = set(self.ledgers)
    first = self.lives if not known else min(each.record.life for each in self.ledgers.values())
    original(self, fact)
    for name in sorted(set(self.ledgers) - known):
        self.ledgers[name].record.life = first


@mutation("lossy", "duplicates", "order")
def late_frames_are_admitted() -> list[Patch]:
    """Duplicate and late publications are passed on."""
    return [Patch(Link, "admit", lambda *_: True)]


@mutation("lossy", "settles", "routing", "answers")
def nothing_is_sent_again() -> list[Patch]:
    """A link retransmits nothing when no acknowledgement arrives."""
    return [Patch(Link, "alarm", nothing)]


@mutation("lossy", "invariants", "routing", "answers")
def a_new_connection_is_taken_for_the_old() -> list[Patch]:
    """A link that still seems up, because the loss of its connection was not noticed, is not
    resumed when the neighbour says hello on a new connection."""
    begin, greet, resume = Link.open, Link.greet, Link.resume

    def note(self: Any, connection: int) -> None:
        self.looked_up = self.up
        begin(self, connection)

    def begin_anew(self: Any, out: Any, now: float, *, heard: bool) -> None:
        self.looked_up = self.looked_up and heard
        greet(self, out, now, heard=heard)

    def trusting(self: Any, hello: Any, out: Any, now: float) -> None:
        if not self.looked_up:
            resume(self, hello, out, now)

    return [
        Patch(Link, "open", note),
        Patch(Link, "greet", begin_anew),
        Patch(Link, "resume", trusting),
    ]
