"""Bugs in transactions: in decisions, in their order, and in their effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from motet.broker.core.durable import Durable
from motet.protocol.delivery.clients import Clients
from motet.protocol.delivery.soft import Streams
from motet.protocol.routing.messages import Subscribe
from motet.protocol.routing.obligations import Emitter
from motet.protocol.routing.soft import Router
from motet.protocol.session.state import Session
from motet.protocol.transactions import root
from motet.protocol.transactions.cutter import Cutter, TxTables
from motet.protocol.transactions.decisions import Decisions
from motet.protocol.transactions.facts import CutMade
from motet.protocol.transactions.messages import OtherReason
from motet.protocol.transactions.participant import Participant
from motet.protocol.transactions.root import Root
from motet.protocol.transactions.soft import SoftTransactions
from motet.protocol.transactions.state import PlanGathering
from motet.testing.bugs.catalogue import Maker, Patch, around, mutation, nothing, replaces
from motet.testing.bugs.durability import unwritten

SHORT: dict[str, Any] = {
    "chaos_s": 4.0,
    "deal_s": 0.05,
    "fair_s": 0.0,
    "durable": 0.0,
    "rewiring": False,
}
CALM = {
    **dict.fromkeys(("kill", "amnesia", "disk_failure", "kill_client", "twin_client"), 0.0),
    **dict.fromkeys(("twin_elsewhere", "log_failure", "cut", "stall", "slow_client"), 0.0),
    **dict.fromkeys(("rough_links", "drop_client", "pause_client", "clock_jump"), 0.0),
}
DEATHS = {**CALM, "kill": 6.0, "pace_s": 0.3}
AMNESIA = {**CALM, "amnesia": 6.0, "pace_s": 0.3}
BROKEN_LINES = {**CALM, "drop_client": 6.0, "pace_s": 0.15}

RIVALS: dict[str, Any] = {
    "clients": 8,
    "deal_s": 0.02,
    "hop_s": (0.001, 0.05),
    "narrow": True,
    "weights": (30.0, 2.0, 6.0, 1.0, 1.0, 0.0, 0.0),
    "total_order": 0.0,
}
"""Many transactions at once, and few other subscriptions that invitations would reach anyway."""


def bug(*breaks: str, **needs: Any) -> Callable[[Maker], Maker]:
    return mutation("transactions", *breaks, **{**SHORT, "menu": CALM, **needs})


# ── cuts ─────────────────────────────────────────────────────────────────────────────────


@bug("atomicity", hop_s=(0.02, 0.2), deal_s=0.02, menu=AMNESIA, first=291)
def the_root_cuts_at_once() -> list[Patch]:
    """The root cuts its own log before any neighbour has the decision, and loses its disk."""

    return [Patch(SoftTransactions, "_is_witnessed", lambda *_: True)]


@bug("transaction-order", first=10)
@around(Cutter, "due")
def a_cut_that_waits_is_overtaken(original: Any, self: Any) -> str:
    """A pubend cuts for any transaction that is ready, regardless of the order of the decisions."""
    waiting = self.state.touched
    for tx in sorted(waiting, key=lambda tx: -waiting[tx].decide.number):
        self.state.touched = {tx: waiting[tx]}
        found: str = original(self)
        self.state.touched = waiting
        if found:
            return found
    return ""


@bug("transaction-order", "replay", menu=DEATHS, sync=1.0)
def a_cut_is_made_again_after_a_restart() -> list[Patch]:
    """The place of a cut is not journaled before the cut is made."""
    return [unwritten(CutMade)]


@bug("exactly-once", "handover", "transaction-order", "routing", "convergence", process_s=0.5)
def the_old_side_leaves_at_the_cut() -> list[Patch]:
    """An ended subscription is removed as soon as its end is known, before it has its events."""
    return [Patch(Clients, "passed", lambda *_: True)]


@bug("visibility")
@around(Clients, "_begin")
def starts_are_not_tentative(original: Any, self: Any, *args: Any) -> None:
    """A subscription begun by a transaction gets events from its start on, not from the cut."""
    original(self, *(*args[:4], False))


@bug("convergence", "exactly-once", "handover", "routing", "settles")
def copies_do_not_know_that_they_have_ended() -> list[Patch]:
    """An ended subscription looks alive at brokers to which a new advertisement attracts it."""
    send, known = Emitter.send, Decisions.normalised

    def innocent(self: Any, neighbour: str, message: Any) -> None:
        if isinstance(message, Subscribe) and message.ended:
            message = replace(message, ended=False)
        send(self, neighbour, message)

    def ignorant(self: Any, message: Any) -> Any:
        found = known(self, message)
        return replace(found, ended=False) if isinstance(found, Subscribe) else found

    return [Patch(Emitter, "send", innocent), Patch(Decisions, "normalised", ignorant)]


@bug("invariants", "replay", hop_s=(0.02, 0.2), deal_s=0.02, narrow=True, first=15)
@around(Streams, "_write")
def starts_are_logged_before_the_cut_that_they_follow(
    original: Any, self: Any, starts: Any, cuts: Any, out: Any
) -> None:
    """Starts above a cut of the same fact are logged before the cut."""
    original(self, starts, (), out)
    original(self, (), cuts, out)


@bug("transaction-order", first=1)
@around(Cutter, "_block")
def the_order_of_a_block_is_ignored(original: Any, self: Any, *args: Any) -> Any:
    """Events of a transaction are published in reverse order."""
    block = original(self, *args)
    return replace(block, events=block.events[::-1])


@bug("transaction-order")
@around(Cutter, "_block")
def all_begins_at_the_cut(original: Any, self: Any, decide: Any, tick: int) -> Any:
    """Subscriptions begin and end at the cut, although events of the transaction precede them."""
    block = original(self, decide, tick)
    for each in block.switches:
        if not each.ended:
            self._tables.subscriptions.get(each.op).start = tick
    return replace(block, switches=tuple(replace(s, tick=tick) for s in block.switches))


# ── decisions ────────────────────────────────────────────────────────────────────────────


@bug("durability", "atomicity", menu=DEATHS)
@around(Durable, "recover")
def the_root_forgets_in_a_restart(original: Any, self: Any, now: float) -> Any:
    """The root forgets all decisions when it restarts."""
    self.transactions.decider.state.outcomes.clear()
    return original(self, now)


@bug("serializability", **RIVALS)
def nobody_looks_at_what_was_read() -> list[Patch]:
    """Isolated transactions are committed even if what they have read has changed."""
    return [Patch(TxTables, "objection", lambda *_: None)]


@bug("serializability", **RIVALS, first=110)
def what_clashes_is_decided_meanwhile() -> list[Patch]:
    """While a transaction is validated, another one that changes what it has read is decided."""
    return [Patch(root, "_clash", lambda *_: False)]


@bug("atomicity", "visibility", "soundness")
@around(Decisions, "decide")
def what_is_staged_is_published_anyway(original: Any, self: Any, message: Any, source: str) -> None:
    """A broker that has staged events treats an abort as a commit."""
    local = self._participant.get(message.tx)
    if source and local is not None and any(part.staged for part in local.parts.values()):
        message = replace(message, committed=True)
    original(self, message, source)


@bug("atomicity", deal_s=0.02)
def the_key_is_ignored() -> list[Patch]:
    """A second transaction with the key of a committed one is committed, too."""
    return [Patch(Root, "_same", lambda *_: None)]


@bug("atomicity", "durability", "convergence", "invariants", "transaction-order", deal_s=0.02)
@replaces(Root, "withdrawn")
def a_late_withdrawal_counts(self: Any, letter: Any) -> None:
    """A withdrawal that arrives after the decision makes the root decide again."""
    self._unqueue(letter.tx)
    self._abort(letter.tx, OtherReason(letter.reason))


@bug("atomicity", "convergence", "routing", "transaction-order", "settles", "handover")
def the_root_does_not_wait_for_the_whole_cast() -> list[Patch]:
    """A plan is decided as soon as its first part has arrived."""
    return [Patch(PlanGathering, "missing", property(lambda _: []))]


# ── clients ──────────────────────────────────────────────────────────────────────────────


@bug("atomicity", menu=BROKEN_LINES)
def outcomes_are_told_once() -> list[Patch]:
    """A client that is not connected when a transaction ends is never told the outcome."""
    return [Patch(Session, "hear", nothing)]


@bug("visibility", "soundness")
@replaces(Router, "_heard")
def best_effort_events_reach_what_has_not_begun(
    self: Any, client: str, epoch: str, subscriptions: tuple[int, ...]
) -> Any:
    """Best-effort events go to subscriptions that are part of an undecided transaction."""
    del self, client, epoch
    return subscriptions


@bug("routing", "convergence", "exactly-once", "soundness")
def an_abort_takes_nothing_back() -> list[Patch]:
    """The entries that an aborted transaction has added stay in the routing tables."""
    return [Patch(Participant, "_withdraw", nothing)]
