"""Lots of cases go from hand to hand, by transactions, while their events keep coming.

Dispatching is a dynamic transaction: whoever has a lot is invited to let it go, another handler to
take it. The dispatcher does not say who has it: the one who does wears the lot's badge.
Consolidating is a plan: the desk takes all lots back at once, and each handler says so, in the same
transaction. Whatever is aborted, because a broker is away perhaps, is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import Final

from motet.client.plan import Plan
from motet.demo.cast import AGENTS, DESK, DISPATCHER, Cast
from motet.errors import Aborted, MisuseError, MotetError, UnavailableError
from motet.model import Value

PAUSE_S: Final = 0.35
"""Between two hand-overs."""
PATIENCE_S: Final = 10.0
RETRY_S: Final = 0.2
OUTCOME_BOUND_S: Final = 60.0
ROUNDS: Final = 2
"""Each lot is dispatched so often before the desk takes all back."""
DISPATCH, CONSOLIDATE = "dispatch", "consolidate"


@dataclass
class HandOver:
    """One that was committed."""

    kind: str
    lots: tuple[str, ...]
    new: str
    """Who has them from then on."""
    began_s: float
    ended_s: float
    tx: str
    tries: int


@dataclass
class HandOvers:
    """All of them, in the order of their ends."""

    done: list[HandOver] = field(default_factory=list)
    aborted: int = 0


class Handing:
    def __init__(self, cast: Cast, now_s: Callable[[], float]) -> None:
        self._cast = cast
        self._now_s = now_s
        self._dispatcher = cast.clients[DISPATCHER]
        self._next_agent = cycle(AGENTS)
        self.holder = dict.fromkeys(cast.lots, DESK)
        self.made = HandOvers()

    async def run(self, over: asyncio.Event) -> None:
        """Round after round, until it is over; what is under way is brought to its end."""
        while not over.is_set():
            for lot in [*self.holder] * ROUNDS:
                if over.is_set():
                    return
                new = next(name for name in self._next_agent if name != self.holder[lot])
                await self._dispatch(lot, new)
                await _pause(over)
            if not over.is_set():
                await self._consolidate()
                await _pause(over)

    # ── dispatching ──────────────────────────────────────────────────────────────────────

    async def _dispatch(self, lot: str, new: str) -> None:
        began_s, tries = self._now_s(), 0
        while True:
            tries += 1
            tx = await self._invited(lot, new)
            if tx:
                self.holder[lot] = new
                self.made.done.append(
                    HandOver(DISPATCH, (lot,), new, began_s, self._now_s(), tx, tries)
                )
                return
            self.made.aborted += 1
            await asyncio.sleep(RETRY_S)

    async def _invited(self, lot: str, new: str) -> str:
        """The transaction's id if it was committed."""
        try:
            tx = await self._dispatcher.transaction(timeout=PATIENCE_S)
        except MotetError:
            return ""  # nobody could have done anything in it
        try:
            async with tx:
                await tx.invite({"holds": lot})
                await tx.invite({"assign": new, "lot": lot})
        except MotetError:
            return tx.id if await self._outcome(tx.id) == "committed" else ""
        return tx.id

    async def _outcome(self, tx: str) -> str:
        try:
            async with asyncio.timeout(OUTCOME_BOUND_S):
                return await self._decided(tx)
        except TimeoutError:
            raise UnavailableError(
                f"nobody says what became of transaction {tx} within {OUTCOME_BOUND_S:g} s"
            ) from None

    async def _decided(self, tx: str) -> str:
        while True:
            try:
                found = await self._dispatcher.outcome(tx, timeout=PATIENCE_S)
            except MotetError:
                found = "in progress"
            if found != "in progress":
                return found
            await asyncio.sleep(RETRY_S)

    # ── consolidating ────────────────────────────────────────────────────────────────────

    async def _consolidate(self) -> None:
        began_s, tries = self._now_s(), 0
        away = tuple(lot for lot, name in self.holder.items() if name != DESK)
        plan = self._plan(away)
        key, doubtful = f"consolidation-{len(self.made.done)}", False
        while True:
            tries += 1
            try:
                tx = await self._dispatcher.execute(plan, key=key, timeout=PATIENCE_S)
                break
            except (Aborted, MisuseError):
                # One before, of which nobody knows, may be what stands in the way.
                self.made.aborted += not doubtful
            except UnavailableError:
                doubtful = True
            await asyncio.sleep(RETRY_S)
        self.holder |= dict.fromkeys(away, DESK)
        self.made.done.append(HandOver(CONSOLIDATE, away, DESK, began_s, self._now_s(), tx, tries))

    def _plan(self, away: tuple[str, ...]) -> Plan:
        """Lot by lot: its handler lets it go, the desk takes it, the handler says so."""
        plan = Plan()
        for place, lot in enumerate(away):
            old, what = self.holder[lot], self._cast.lots[lot]
            ends = plan.unsubscribe(old, lot, after=[])
            begins = plan.subscribe(DESK, what.filter, name=lot, after=[ends])
            off = plan.unsubscribe(old, what.badge, after=[])
            plan.subscribe(DESK, what.worn, name=what.badge, after=[off])
            told: dict[str, Value] = {"moved": lot, "by": old, "place": place, "of": len(away)}
            plan.publish(old, told, after=[begins])
        # Who publishes what is one order: the places.
        says = [step for step in plan.steps if step.kind == "publish"]
        for first, then in pairwise(says):
            plan.order(first, then)
        return plan


async def _pause(over: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PAUSE_S):
            await over.wait()
    except TimeoutError:
        return
