"""Evening out the clients of all brokers: plan, move, look again, until all are even."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from motet.errors import MotetError, NotOffered, UnknownClient
from motet.fleet.convoy import Convoy, Survey, Traveller, survey, travellers
from motet.fleet.spread import Flows, is_even, plan

SOON_S, LOOK_S = 0.02, 0.25
"""How long to wait before the brokers are asked again: at first, and later."""


class BalanceReport(Struct):
    before: dict[str, int] = field(default_factory=dict)
    """By broker: its clients."""
    after: dict[str, int] = field(default_factory=dict)
    planned: Flows = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """By broker: why it neither gives nor takes clients."""
    moved: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By client: its old and its new broker."""
    stay: dict[str, str] = field(default_factory=dict)
    """By client that was to move: why it could not."""
    moves_s: float = 0.0
    interrupted: bool = False

    @property
    def is_even(self) -> bool:
        return not self.after or is_even(self.after)


Progress = Callable[[BalanceReport, str], None]


class Balance:
    def __init__(
        self,
        addresses: Mapping[str, str],
        timeout_s: float = 60.0,
        progress: Progress = lambda *_: None,
    ) -> None:
        self._given = dict(addresses)
        self._until = time.monotonic() + timeout_s
        self._progress = progress
        self._convoy: Convoy | None = None
        self.report = BalanceReport()

    def stop(self) -> None:
        """Order nothing more; `run` returns when the moves under way are decided."""
        self.report.interrupted = True
        if self._convoy is not None:
            self._convoy.stop()

    @property
    def _is_over(self) -> bool:
        return self.report.interrupted or time.monotonic() >= self._until

    async def plan(self) -> BalanceReport:
        """What would be done now."""
        found = await survey(self._given)
        report = self.report
        report.before = report.after = self._counts(found)
        report.planned = plan(report.before, found.distances)
        return report

    async def run(self) -> BalanceReport:
        report = await self.plan()
        found = await survey(self._given)
        self._convoy = Convoy(found.addresses, self._until)
        if report.interrupted:
            self._convoy.stop()
        began, flows = time.monotonic(), report.planned
        while flows and not self._is_over:
            gone = await self._carry_out(flows, found)
            report.moves_s = time.monotonic() - began
            found = await self._settled()
            report.after = self._counts(found)
            flows = plan(report.after, found.distances) if gone else {}
        return report

    def _counts(self, found: Survey) -> dict[str, int]:
        """The clients of the brokers that can give and take some."""
        if not found.states:
            raise next(iter(found.silent.values()))
        left_out = {name: str(problem) for name, problem in found.silent.items()}
        for name, state in found.states.items():
            if found.is_draining(name):
                left_out[name] = "it is draining"
            elif state["covering"] or state["cell"] is not None:
                left_out[name] = "its clients cannot move: covering is on, or it is in a cell"
        self.report.left_out = left_out
        counts = {name: many for name, many in found.counts.items() if name not in left_out}
        if not counts:
            why = "; ".join(f"{name}: {problem}" for name, problem in left_out.items())
            raise NotOffered(f"no broker gives or takes clients: {why}")
        return counts

    async def _carry_out(self, flows: Flows, found: Survey) -> int:
        """How many clients have moved."""
        assert self._convoy is not None
        left = dict(flows)
        gone = 0
        waiting: list[Traveller] = []
        for source in dict.fromkeys(source for source, _ in flows):
            clients, bound = await travellers(found, source)
            self.report.stay |= bound if len(clients) < _given_by(source, flows) else {}
            waiting += sorted(clients, key=self._reluctance)

        def choose(traveller: Traveller) -> str | None:
            for (source, target), many in left.items():
                if source == traveller.source and many:
                    left[source, target] -= 1
                    return target
            return None

        def told(traveller: Traveller, target: str, problem: MotetError | None) -> None:
            nonlocal gone
            source, client = traveller.source, traveller.client
            if problem is None:
                gone += 1
                self.report.moved[client] = (self.report.moved.get(client, (source,))[0], target)
                self.report.stay.pop(client, None)
            else:
                left[source, target] += 1  # another one may go instead
                if not isinstance(problem, UnknownClient):
                    self.report.stay[client] = str(problem)
            self._progress(self.report, f"{source} to {target}")

        await self._convoy.carry(waiting, choose, told)
        return gone

    def _reluctance(self, traveller: Traveller) -> tuple[bool, bool]:
        """Those are last that could not move before, and those that must be sent on later."""
        return traveller.client in self.report.stay, not traveller.connected

    async def _settled(self) -> Survey:
        """The overlay when nobody is on the way, or the time is over."""
        look_s = SOON_S
        while True:
            found = await survey(self._given)
            if not found.on_the_way() or self._is_over:
                return found
            self._progress(self.report, "waiting for clients to arrive")
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, LOOK_S)


def _given_by(source: str, flows: Flows) -> int:
    return sum(many for (giver, _), many in flows.items() if giver == source)
