"""Clients that move, under faults: they ask for it themselves, or an operator orders it.

Some publish, some subscribe, some do both, and some of these are in total order. Apart from their
moves they are like all clients of a run, and all checkers follow them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from motet.chaos.absentees import Absentees
from motet.chaos.chronicle import Chronicle
from motet.chaos.hands import Hands
from motet.chaos.plan import ChaosPlan, Phase
from motet.chaos.traffic import ChaosClient, ChaosTraffic
from motet.client.channel import RequestChannel
from motet.client.orders import move_order
from motet.errors import Disconnected, MotetError, NoAnswer
from motet.model import Filter
from motet.protocol.session.messages import Status, StatusRequest
from motet.testing.history import OrderRecord

ROLES: Final = (("publisher",), ("subscriber",), ("publisher", "subscriber"))
"""By number of the client."""
MERGES: Final = 5
"""One in so many clients is in total order."""
TIMEOUTS_S: Final = (10.0, 10.0, 10.0, 3.0, 0.5)
STATIONS: Final = (1, 1, 1, 2, 3)
"""How often a client moves in a row."""
PAUSE_S: Final = 0.3
"""The longest time between two moves of a row."""
IMPATIENT: Final = 0.1
"""The share of moves whose client does not wait long for its session."""
PATIENCE_S: Final = (1.0, 3.0)
ORDERED: Final = 0.25
"""The share of moves that an operator orders."""
MISINFORMED: Final = 0.1
"""The share of operators that ask the wrong broker."""
ORDER_S: Final = 5.0
LOOK_S: Final = 2.0
"""How long a storm looks at a move before it strikes anyway."""
ASK_S: Final = 0.3
ARRIVING_S: Final = 0.03
"""The longest time after the decision of a move at which a storm strikes its arrival."""


@dataclass(frozen=True)
class Journey:
    """Of a client that is about to move."""

    client: ChaosClient
    source: str
    target: str


class Movers(ChaosTraffic):
    """Traffic in which clients move all the time."""

    sure_share = 0.7

    def __init__(self, plan: ChaosPlan, chronicle: Chronicle, addresses: Mapping[str, str]) -> None:
        super().__init__(plan, chronicle, addresses)
        self._chance = plan.random("moves")
        self._orders: set[asyncio.Task[bool]] = set()
        self._sides = (
            Hands(plan, chronicle, addresses),
            Absentees(plan, chronicle, addresses),
        )
        """Traffic beside, which is judged by itself."""

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def _publishes(self, application: ChaosClient) -> bool:
        return "publisher" in _roles(application.name)

    def _subscribes(self, application: ChaosClient) -> bool:
        return "subscriber" in _roles(application.name)

    def _merges(self, name: str) -> bool:
        return _number(name) % MERGES == MERGES - 1

    def _draw_filter(self) -> Filter:
        """One that no event of the traffic beside matches."""
        while (found := super()._draw_filter()).matches({"kind": ""}):
            pass
        return found

    @property
    def at_rest(self) -> bool:
        beside = all(side.at_rest for side in self._sides)
        return beside and not self._orders and super().at_rest

    def living_at(self, broker: str) -> int:
        beside = sum(side.living_at(broker) for side in self._sides)
        return beside + super().living_at(broker)

    # ── the stages ───────────────────────────────────────────────────────────────────────

    async def begin(self) -> None:
        for side in self._sides:
            await side.begin()
        await super().begin()

    async def run(self) -> None:
        beside = [asyncio.ensure_future(side.run()) for side in self._sides]
        moving = asyncio.ensure_future(self._move_about())
        try:
            await super().run()
        finally:
            for task in (moving, *beside):
                task.cancel()
            await asyncio.gather(moving, *beside, return_exceptions=True)

    async def probe(self) -> None:
        await asyncio.gather(super().probe(), *(side.probe() for side in self._sides))

    async def judge(self) -> None:
        for side in self._sides:
            await side.judge()

    async def leave(self) -> None:
        """The clients of the traffic beside leave, those that the checkers follow stay."""
        for side in self._sides:
            await side.leave()

    async def pack_up(self) -> None:
        for task in self._orders:
            task.cancel()
        await asyncio.gather(*self._orders, return_exceptions=True)
        for side in self._sides:
            await side.pack_up()
        await super().pack_up()

    # ── moving ───────────────────────────────────────────────────────────────────────────

    async def _move_about(self) -> None:
        chance = self._chance
        while True:
            await asyncio.sleep(chance.expovariate(1.0 / self._plan.move_s))
            client = self._somebody()
            if client is None:
                continue
            if chance.random() < ORDERED:
                self._order(client.name, client.home, self._elsewhere(client.home))
            else:
                client.do(self._travel(client, chance.choice(STATIONS)))

    def _somebody(self) -> ChaosClient | None:
        idle = [each for each in self.living if each.moving is None]
        return self._chance.choice(idle) if idle else None

    def _elsewhere(self, home: str) -> str:
        return self._chance.choice([name for name in self._plan.tree.brokers if name != home])

    async def _travel(self, client: ChaosClient, stations: int) -> None:
        for _ in range(stations):
            if client.able:
                await self._move(client, self._elsewhere(client.home))
                await asyncio.sleep(self._chance.uniform(0.0, PAUSE_S))

    async def _move(self, client: ChaosClient, to: str) -> None:
        chance = self._chance
        patience_s = chance.uniform(*PATIENCE_S) if chance.random() < IMPATIENT else None
        await client.move(to, chance.choice(TIMEOUTS_S), patience_s)

    # ── operators ────────────────────────────────────────────────────────────────────────

    def _order(self, client: str, home: str, to: str) -> None:
        if self._chance.random() < MISINFORMED:
            home = self._elsewhere(to)
        task = asyncio.ensure_future(self.order(client, home, to))
        self._orders.add(task)
        task.add_done_callback(self._ordered)

    def _ordered(self, task: asyncio.Task[Any]) -> None:
        self._orders.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            detail = f"an operator gave up: {type(problem).__name__}: {problem}"
            self._chronicle.history.odd("invariants", detail)

    async def order(self, client: str, home: str, to: str, *, absent: bool = False) -> bool:
        """Order a move; true if it is decided."""
        chronicle = self._chronicle
        record = OrderRecord(client, home, to, chronicle.now(), absent=absent)
        chronicle.history.orders.append(record)
        try:
            await move_order(self._addresses[home], client, to, ORDER_S)
        except (Disconnected, NoAnswer):
            record.lost = True
        except MotetError as problem:
            record.answers.append(type(problem).__name__)
        else:
            record.answers.append("")
        return record.answers == [""]

    # ── for storms ───────────────────────────────────────────────────────────────────────

    def set_out(self) -> Journey | None:
        """Let a client begin to move, far if possible."""
        tree = self._plan.tree
        client = self._somebody()
        if client is None:
            return None
        source = client.home
        far = [n for n in tree.brokers if len(tree.path(source, n)) > 2]
        target = self._chance.choice(far) if far else self._elsewhere(source)
        client.do(client.move(target, TIMEOUTS_S[0]))
        return Journey(client, source, target)

    async def meet(self, way: Journey, phase: Phase) -> str:
        """Wait until a move is in a phase, or beyond it; returns the phase in which it was."""
        if phase == "asking":
            await asyncio.sleep(0)
            return phase
        seen = "asking"
        async with RequestChannel(self._addresses[way.source], ASK_S, "never") as channel:
            until = self._chronicle.now() + LOOK_S
            while self._chronicle.now() < until:
                with contextlib.suppress(MotetError):
                    told = (await channel.ask(StatusRequest(()), Status)).state
                    seen = _phase_of(way, told["moves"])
                if way.client.moving is None:
                    return "over"
                if seen == phase or seen == "in transit":
                    break
        if phase == "arriving" and seen == "in transit":
            await asyncio.sleep(self._chance.uniform(0.0, ARRIVING_S))
            return phase
        return seen


def _number(name: str) -> int:
    return int(name.lstrip("c"))


def _roles(name: str) -> tuple[str, ...]:
    return ROLES[_number(name) % len(ROLES)]


def _phase_of(way: Journey, moves: Mapping[str, Any]) -> str:
    """Of a move, as its source says."""
    departing = moves["departing"].get(way.client.name)
    if departing is not None:
        return "offering" if departing["phase"] == "offering" else "asking"
    if way.client.name in moves["in_transit"] or way.client.name in moves["gone_to"]:
        return "in transit"
    return "asking"
