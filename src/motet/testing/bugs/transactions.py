"""Bugs in transactions: what is decided, in which order, and where it takes effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from motet.broker import facts
from motet.broker.core import BrokerCore
from motet.broker.router import Router
from motet.protocol.contract import Fact
from motet.protocol.delivery.clients import Clients
from motet.protocol.delivery.machine import DeliveryMachine
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import Subscribe
from motet.protocol.session.state import Session
from motet.protocol.transactions import deciding
from motet.protocol.transactions.concluding import Concluding
from motet.protocol.transactions.cutting import Cutting
from motet.protocol.transactions.deciding import Deciding
from motet.protocol.transactions.machine import LETTERS, MOVES, Transactions
from motet.protocol.transactions.messages import Decide, Withdraw
from motet.protocol.transactions.state import Gathering
from motet.testing.bugs.catalogue import Maker, mutation, nothing
from motet.testing.patches import Patch

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
BROKEN_LINES = {**CALM, "drop_client": 6.0, "pace_s": 0.15}

RIVALS: dict[str, Any] = {
    "clients": 8,
    "deal_s": 0.02,
    "hop_s": (0.001, 0.05),
    "narrow": True,
    "weights": (30.0, 2.0, 6.0, 1.0, 1.0, 0.0, 0.0),
    "total_order": 0.0,
}
"""Many transactions at once, and few subscriptions that would be met anyway."""


def bug(*breaks: str, **needs: Any) -> Callable[[Maker], Maker]:
    return mutation("transactions", *breaks, **{**SHORT, "menu": CALM, **needs})


# ── cuts ─────────────────────────────────────────────────────────────────────────────────


@bug("transaction-order", first=10)
def a_cut_that_waits_is_overtaken() -> list[Patch]:
    """A pubend cuts for whatever can be cut for, in whichever order it was decided."""
    original = Cutting.due

    def hasty(self: Any) -> str:
        waiting = [each for each in self.state.active.values() if each.cutting]
        for each in sorted(waiting, key=lambda active: -active.decide.number):
            others = [other for other in waiting if other is not each]
            for other in others:
                other.cutting = False
            found = original(self)
            for other in others:
                other.cutting = True
            if found:
                return found
        return ""

    return [Patch(Cutting, "due", hasty)]


@bug("transaction-order", "replay", menu=DEATHS, sync=1.0)
def a_cut_is_made_again_after_a_restart() -> list[Patch]:
    """Where a cut is, is not written down before it is made."""
    original = BrokerCore._journal

    def forgetful(self: Any, body: Any, out: Any, now: float) -> None:
        if type(body) is facts.CutMade:
            self._carry_out(self.durable.apply(Fact(now, body)), out, now)
        else:
            original(self, body, out, now)

    return [Patch(BrokerCore, "_journal", forgetful)]


@bug("exactly-once", "handover", "transaction-order", "routing", "convergence", process_s=0.5)
def the_old_side_leaves_at_the_cut() -> list[Patch]:
    """A subscription that has ended goes as soon as that is known, not when it has had all."""
    return [Patch(DeliveryMachine, "passed", lambda *_: True)]


@bug("visibility")
def starts_are_not_tentative() -> list[Patch]:
    """What a transaction begins is given events from its start on, not from the cut."""
    original = Clients.begin

    def eager(self: Any, *args: Any) -> None:
        original(self, *(*args[:5], False))

    return [Patch(Clients, "begin", eager)]


@bug("convergence", "exactly-once", "handover", "routing", "settles", first=158)
def copies_do_not_know_that_they_have_ended() -> list[Patch]:
    """A subscription that has ended, and is attracted by a new advertisement, looks alive there."""
    send, known = Routing._send, Transactions.normalised

    def innocent(self: Any, neighbour: str, message: Any) -> None:
        if isinstance(message, Subscribe) and message.ended:
            message = replace(message, ended=False)
        send(self, neighbour, message)

    def ignorant(self: Any, message: Any) -> Any:
        found = known(self, message)
        return replace(found, ended=False) if isinstance(found, Subscribe) else found

    owner = next(each for each in Routing.__mro__ if "_send" in vars(each))
    tables = next(each for each in Transactions.__mro__ if "normalised" in vars(each))
    return [Patch(owner, "_send", innocent), Patch(tables, "normalised", ignorant)]


@bug("transaction-order", first=1)
def the_order_of_a_block_is_ignored() -> list[Patch]:
    """Events of a transaction are published last first."""
    original = Cutting._block

    def backwards(self: Any, *args: Any) -> Any:
        block = original(self, *args)
        return replace(block, events=block.events[::-1])

    return [Patch(Cutting, "_block", backwards)]


@bug("transaction-order")
def all_begins_at_the_cut() -> list[Patch]:
    """Subscriptions begin and end at the cut, whatever events of the transaction precede them."""
    original = Cutting._block

    def blunt(self: Any, decide: Any, tick: int) -> Any:
        block = original(self, decide, tick)
        for each in block.switches:
            if not each.ended:
                self.routing.subscriptions.get(each.op).start = tick
        return replace(block, switches=tuple(replace(s, tick=tick) for s in block.switches))

    return [Patch(Cutting, "_block", blunt)]


# ── decisions ────────────────────────────────────────────────────────────────────────────


@bug("durability", "atomicity", menu=DEATHS)
def the_root_forgets_in_a_restart() -> list[Patch]:
    """What was decided is known only to the process that has decided it."""
    original = BrokerCore.recover

    def forgetful(self: Any, *args: Any) -> Any:
        self.durable.transactions.state.outcomes.clear()
        return original(self, *args)

    return [Patch(BrokerCore, "recover", forgetful)]


@bug("serializability", **RIVALS)
def nobody_looks_at_what_was_read() -> list[Patch]:
    """Isolated transactions are committed whatever has changed since they have read it."""
    return [Patch(Cutting, "_stale", lambda *_: "")]


@bug("serializability", **RIVALS)
def what_clashes_is_decided_meanwhile() -> list[Patch]:
    """While a transaction is validated, another one that changes what it has read is decided."""
    return [Patch(deciding, "_clash", lambda *_: False)]


@bug("atomicity", "visibility", "soundness")
def what_is_staged_is_published_anyway() -> list[Patch]:
    """A broker that has staged events takes an abort for a commit."""
    original = MOVES[Decide]

    def deaf(self: Any, message: Any, source: Any) -> None:
        local = self.state.locals.get(message.tx)
        if local is not None and any(part.staged for part in local.parts.values()):
            message = replace(message, committed=True)
        original(self, message, source)

    return [Patch(MOVES, Decide, deaf)]


@bug("atomicity", deal_s=0.02)
def the_key_is_ignored() -> list[Patch]:
    """What was committed before under the same key is committed again."""
    return [Patch(Deciding, "_same", lambda *_: "")]


@bug("atomicity", "durability", "convergence", "invariants", "transaction-order", deal_s=0.02)
def a_late_withdrawal_counts() -> list[Patch]:
    """Who gives a transaction up after it was decided makes the root decide again."""

    def obedient(self: Any, letter: Any) -> None:
        self.state.queue = [each for each in self.state.queue if each.tx != letter.tx]
        self._decide_now(letter.tx, (), False, letter.reason)

    return [Patch(LETTERS, Withdraw, obedient)]


@bug("atomicity", "convergence", "routing", "transaction-order", "settles", "handover")
def the_root_does_not_wait_for_the_whole_cast() -> list[Patch]:
    """A plan is decided when the first part of it has come."""
    return [Patch(Gathering, "missing", property(lambda _: []))]


# ── clients ──────────────────────────────────────────────────────────────────────────────


@bug("atomicity", menu=BROKEN_LINES)
def outcomes_are_told_once() -> list[Patch]:
    """Who is not there when a transaction ends never hears how."""
    return [Patch(Session, "hear", nothing)]


@bug("visibility", "soundness")
def best_effort_events_reach_what_has_not_begun() -> list[Patch]:
    """Best-effort events go to subscriptions that are part of an undecided transaction."""

    def open_handed(self: Any, client: str, subscriptions: tuple[int, ...]) -> tuple[int, ...]:
        del self, client
        return subscriptions

    return [Patch(Router, "_heard", open_handed)]


@bug("routing", "convergence", "exactly-once", "soundness")
def an_abort_takes_nothing_back() -> list[Patch]:
    """What an aborted transaction has added stays in the tables."""
    return [Patch(Concluding, "_withdraw", nothing)]
