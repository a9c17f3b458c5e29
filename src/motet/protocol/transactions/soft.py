"""The soft half of transactions: timers, due cuts, and the status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Protocol

from motet.protocol.contract import Output
from motet.protocol.room import LISTED, SoftRoom
from motet.protocol.shared import SharedState
from motet.protocol.transactions.facts import CutMade, TransactionOverdue


class Ticks(Protocol):
    """What transactions need from our own pubend."""

    begun: bool

    def next_tick(self, now: float) -> int: ...


class Confirmations(Protocol):
    """What transactions need from links: a call when neighbours have confirmed control."""

    confirmed: list[Callable[[Output, float], None]]


class SoftTransactions(SoftRoom):
    def __init__(self, shared: SharedState, ticks: Ticks, links: Confirmations) -> None:
        self._shared = shared
        self._ticks = ticks
        self._machine = shared.durable.transactions
        self._cutter = self._machine.cutter
        self.due = self._cutter.state.touched
        if self._machine.courier.is_root:
            links.confirmed.append(self._confirmed)

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"transaction": self._overdue}

    def _overdue(self, key: tuple[str, str], out: Output, now: float) -> None:
        self._shared.journal(TransactionOverdue(key[1]), out, now)

    def journaled(self, out: Output, now: float) -> None:
        """Make the cut that the last fact has made due. Its own fact makes the next one due."""
        if self._ticks.begun and (due := self._cutter.due()) and self._is_witnessed(due):
            self._shared.journal(CutMade(due, self._ticks.next_tick(now)), out, now)

    def _confirmed(self, out: Output, now: float) -> None:
        if self.due:
            self.journaled(out, now)

    def _is_witnessed(self, tx: str) -> bool:
        """Whether a decision outlasts the disk of the root. If the root cut before and lost its
        disk, a broker that takes part could have the transaction aborted after its events were
        seen. So at least one neighbour must have confirmed the decision, and each neighbour that is
        connected and has such brokers behind it: then it reports the decision before they speak.
        """
        decision = self._machine.active.get(tx)
        neighbours = self._machine.witnesses(tx) if decision is not None else []
        if decision is None or not neighbours:
            return True
        links = self._shared.links  # without a neighbour that is being added in this very step
        for name in neighbours:
            link = links.get(name)
            if link is not None and link.up and not link.ledger.has_confirmed(decision.decide):
                return False
        return any(link.ledger.has_confirmed(decision.decide) for link in links.values())

    def account(self) -> dict[str, Any]:
        """Open and decided transactions, and the number of the last decision."""
        machine = self._machine
        locals_ = machine.participant.state.locals
        active = machine.decisions.state.active
        listed = {}
        for tx, local in islice(locals_.items(), LISTED):
            coordination = machine.coordinator.get(tx)
            submitted = coordination is not None and coordination.submitted
            invited = [each.client for each in local.invitations]
            listed[tx] = {
                "kind": coordination.kind if coordination is not None else "",
                "state": "submitted" if submitted else "open",
                "clients": sorted({*local.parts, *invited}),
                "waiting_for": sorted(dict.fromkeys(invited)),
            }
        for tx, decision in islice(active.items(), LISTED):
            cutting = machine.cutter.must_cut(tx)
            listed[tx] = {
                "kind": "",
                "state": "committed" if decision.decide.committed else "aborted",
                "clients": [],
                "waiting_for": sorted([*decision.missing, *([self._shared.name] * cutting)]),
            }
        return {
            "transactions": {
                "root": machine.root,
                "open": len(locals_),
                "deciding": len(machine.decider.state.queue),
                "taking_effect": len(active),
                "last_decision": machine.decisions.state.number,
                "listed": listed,
            }
        }
