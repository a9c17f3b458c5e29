"""Emptying a broker: it takes in no sessions, all its clients move away, its log is read out.

Each step is repeated until it is done or the time is over, because clients come and go meanwhile. A
drain that ends early leaves the broker draining: whoever repeats it goes on where it ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from motet.client.orders import order_drain
from motet.errors import (
    Disconnected,
    MisuseError,
    MotetError,
    MoveRefused,
    NotEffective,
    NotOffered,
    UnknownClient,
)
from motet.fleet.convoy import Convoy, Survey, Traveller, survey, travellers
from motet.fleet.spread import emptiest

AGAIN_S = 0.5
"""How long to wait before those that could not move are asked to move again."""
SOON_S, LOOK_S = 0.02, 0.25
"""How long to wait before the brokers are asked again: at first, and later."""
HURRY_S = 1.0
"""How often a broker is to ask for the acknowledgements that its log lacks."""
NOT_ASKED = "it was not asked to move before the end"


class DrainReport(Struct):
    broker: str
    targets: tuple[str, ...] = ()
    begun: bool = False
    """The broker drains."""
    was_draining: bool = False
    moved: dict[str, str] = field(default_factory=dict)
    """By client: its new broker."""
    away: list[str] = field(default_factory=list)
    """Those of them that were not connected. The drained broker sends them on when they come."""
    stay: dict[str, str] = field(default_factory=dict)
    """By client: why it could not move."""
    left: int = 0
    """Sessions that are still there."""
    in_transit: list[str] = field(default_factory=list)
    """Clients on their way from or to the broker."""
    log_owed: bool = False
    owed_towards: list[str] = field(default_factory=list)
    """The next brokers towards subscribers that have not acknowledged all events of its log."""
    moves_s: float = 0.0
    """From the first order to the last one that was carried out."""
    interrupted: bool = False

    @property
    def is_deserted(self) -> bool:
        """No client is there, or on its way."""
        return not (self.left or self.in_transit)

    @property
    def is_empty(self) -> bool:
        return self.is_deserted and not self.log_owed


Progress = Callable[[DrainReport, str], None]
"""Called whenever the report has changed, with what happens now."""


class Drain:
    def __init__(
        self,
        addresses: Mapping[str, str],
        broker: str,
        to: Sequence[str] = (),
        timeout_s: float = 60.0,
        progress: Progress = lambda *_: None,
        *,
        prefer: Sequence[str] = (),
        await_log: bool = True,
    ) -> None:
        """Without `to`, the clients are spread over the brokers to be preferred; those that these
        do not take, over the neighbours or, if none of them takes clients, over all other brokers.
        Without `await_log`, it ends as soon as all clients are elsewhere."""
        self._given = dict(addresses)
        self._broker = broker
        self._to = tuple(dict.fromkeys(to))
        self._prefer = tuple(prefer)
        self._await_log = await_log
        self._began = time.monotonic()
        self._until = self._began + timeout_s
        self._progress = progress
        self._convoy: Convoy | None = None
        self._counts: dict[str, int] = {}
        self._refused: dict[str, dict[str, None]] = {}
        """By client: the targets that have refused it, or were not reached."""
        self._unreached: dict[str, None] = {}
        self.report = DrainReport(broker)

    def stop(self) -> None:
        """Order nothing more; `run` returns when the moves under way are decided."""
        self.report.interrupted = True
        if self._convoy is not None:
            self._convoy.stop()

    async def run(self) -> DrainReport:
        """Raises an error if the broker cannot be drained, or a target is wrong. Nothing has
        changed then."""
        report = self.report
        found = await survey(self._given)
        found.check(self._broker)
        report.targets = self._targets(found)
        report.was_draining = not await order_drain(found.addresses[self._broker], True)
        report.begun = True
        self._counts = {name: found.counts.get(name, 0) for name in report.targets}
        self._convoy = Convoy(found.addresses, self._until)
        if report.interrupted:
            self._convoy.stop()
        self._began = time.monotonic()
        while (stay := await self._move_all(found)) is not None:
            if not await self._pause(AGAIN_S if stay else 0.0):
                break
        await self._wait(found)
        if report.left:
            await self._name_the_rest(found)
        return report

    @property
    def _is_over(self) -> bool:
        return self.report.interrupted or time.monotonic() >= self._until

    # ── targets ──────────────────────────────────────────────────────────────────────────

    def _targets(self, found: Survey) -> tuple[str, ...]:
        broker = self._broker
        for name in self._to:
            if name == broker:
                raise MisuseError(f"{broker} is to be emptied, so no client can move to it")
            if name in found.silent:
                raise Disconnected(f"{name} takes no clients: {found.silent[name]}")
            if name not in found.known:
                known = ", ".join(each for each in found.known if each != broker) or "none"
                raise MisuseError(f"there is no broker {name!r}; others are {known}")
            if found.is_draining(name):
                raise MisuseError(f"{name} is draining itself, so no client can move to it")
        if self._to:
            return self._to
        able = [
            name
            for name in found.known
            if name != broker and name not in found.silent and not found.is_draining(name)
        ]
        links = found.states[broker]["links"]
        near = [name for name in able if name in links and links[name]["phase"] == "up"]
        if able:
            preferred = (name for name in self._prefer if name in able)
            return tuple(dict.fromkeys((*preferred, *(near or able))))
        others = [name for name in found.known if name != broker]
        if not others:
            raise MisuseError(f"{broker} is the only broker: its clients can move nowhere")
        raise NotOffered(
            f"no other broker takes the clients of {broker}: {', '.join(others)} "
            f"{'is' if len(others) == 1 else 'are'} draining, or not answering"
        )

    def _choose(self, found: Survey, client: str) -> str:
        """The emptiest target, if possible one that has not refused this client, that was reached,
        and that is preferred."""
        targets: Iterable[str] = self.report.targets
        refused = self._refused.setdefault(client, {})
        if all(each in refused for each in targets):
            refused.clear()
        targets = [each for each in targets if each not in refused]
        targets = [each for each in targets if each not in self._unreached] or targets
        targets = [each for each in targets if each in self._prefer] or targets
        return emptiest(self._broker, targets, self._counts, found.distances)

    # ── moves ────────────────────────────────────────────────────────────────────────────

    async def _move_all(self, found: Survey) -> int | None:
        """Order every client to move. Returns how many of them stay; None if there were none."""
        assert self._convoy is not None
        report = self.report
        clients, bound = await travellers(found, self._broker)
        names = {each.client for each in clients}
        report.stay = {client: why for client, why in report.stay.items() if client in names}
        report.stay |= bound
        report.left = len(clients) + len(bound)
        self._progress(report, "moving clients")
        if not clients:
            return None
        self._unreached.clear()

        def choose(traveller: Traveller) -> str:
            target = self._choose(found, traveller.client)
            self._counts[target] += 1
            return target

        def told(traveller: Traveller, target: str, problem: MotetError | None) -> None:
            self._note(traveller, target, problem)
            self._progress(report, "moving clients")

        await self._convoy.carry(clients, choose, told)
        return len(report.stay) - len(bound)

    async def _name_the_rest(self, found: Survey) -> None:
        """Say of every client that is still there why."""
        clients, bound = await travellers(found, self._broker)
        known = self.report.stay | bound
        rest = {each.client: known.get(each.client, NOT_ASKED) for each in clients}
        self.report.stay = rest | bound
        self.report.left = len(self.report.stay)

    def _note(self, traveller: Traveller, target: str, problem: MotetError | None) -> None:
        report, client = self.report, traveller.client
        if problem is None:
            report.moved[client] = target
            report.moves_s = time.monotonic() - self._began
            report.left -= 1
            report.stay.pop(client, None)
            if not traveller.connected:
                report.away.append(client)
            return
        self._counts[target] -= 1
        if isinstance(problem, UnknownClient):
            report.left -= 1  # it has ended meanwhile
            return
        report.stay[client] = str(problem)
        if isinstance(problem, NotEffective | MoveRefused):
            self._refused[client][target] = None
        if isinstance(problem, NotEffective):
            self._unreached[target] = None

    async def _pause(self, seconds: float) -> bool:
        """Whether there is time for more."""
        left_s = self._until - time.monotonic()
        if not self._is_over:
            await asyncio.sleep(max(min(seconds, left_s), 0.0))
        return not self._is_over

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def _wait(self, found: Survey) -> None:
        """Wait until nobody is on the way and nothing is owed. Clients that arrive because their
        move was decided before the drain began move on."""
        report, broker = self.report, self._broker
        answering = {name: found.addresses[name] for name in found.states}
        hurry_at, look_s = time.monotonic(), SOON_S
        while True:
            now = await survey(answering)
            now.check(broker)
            state = now.states[broker]
            report.left = state["session_count"]
            report.in_transit = now.on_the_way(broker)
            report.log_owed = state["log_owed"]["owed"]
            report.owed_towards = state["log_owed"]["towards"]
            coming = now.about_to_come(broker)
            able = report.left > len(report.stay)
            owed = report.log_owed and self._await_log
            if (report.is_deserted and not owed and not coming) or self._is_over:
                return
            if report.left and not able and not report.in_transit and not owed:
                return
            if able:
                await self._move_all(found)
            elif owed and report.is_deserted and time.monotonic() >= hurry_at:
                hurry_at = time.monotonic() + HURRY_S
                await order_drain(found.addresses[broker], True)
            self._progress(report, self._awaited(state))
            await self._pause(look_s)
            look_s = min(2 * look_s, LOOK_S)

    def _awaited(self, state: dict[str, Any]) -> str:
        if self.report.in_transit:
            return "waiting for clients to arrive"
        towards = ", ".join(state["log_owed"]["towards"])
        return f"waiting until its log is owed to nobody (towards {towards})"
