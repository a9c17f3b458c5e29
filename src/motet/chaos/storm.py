"""Carries out the planned faults; each is repaired after its time, or all at once in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from motet.chaos.chronicle import Chronicle, named
from motet.chaos.movers import Journey, Movers
from motet.chaos.plan import ROLES, STATIONS, ChaosPlan, Kind, Strike
from motet.chaos.traffic import ChaosClient, ChaosTraffic
from motet.fleet.process import BrokerProcess
from motet.fleet.proxy import LinkProxy
from motet.testing.topology import Edge

T = TypeVar("T")


class Storm:
    def __init__(
        self,
        plan: ChaosPlan,
        chronicle: Chronicle,
        brokers: Mapping[str, BrokerProcess],
        proxies: Mapping[Edge, LinkProxy],
        traffic: ChaosTraffic,
    ) -> None:
        self._plan = plan
        self._chronicle = chronicle
        self._brokers = brokers
        self._proxies = proxies
        self._traffic = traffic
        self._over = asyncio.Event()
        """Set when everything is to be repaired: it ends all faults."""
        self._under_way: set[asyncio.Task[None]] = set()

    # ── carrying out ─────────────────────────────────────────────────────────────────────

    async def run(self, strikes: Sequence[Strike]) -> None:
        began = self._chronicle.now()
        for strike in strikes:
            await asyncio.sleep(max(0.0, began + strike.at_s - self._chronicle.now()))
            work = STRIKES[strike.kind](self, strike)
            if work is not None:
                self._chronicle.faults[strike.kind] += 1
                task = asyncio.ensure_future(work)
                self._under_way.add(task)
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._chronicle.history.odd("invariants", str(problem))

    async def mend(self) -> None:
        """Repair everything now."""
        self._over.set()
        while self._under_way:
            await asyncio.wait(set(self._under_way))

    async def _while_it_lasts(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            pass

    # ── brokers ──────────────────────────────────────────────────────────────────────────

    def kill(self, strike: Strike) -> Awaitable[None] | None:
        return self._on_a_broker(strike, self._kill)

    def restart(self, strike: Strike) -> Awaitable[None] | None:
        return self._on_a_broker(strike, self._restart)

    def pause(self, strike: Strike) -> Awaitable[None] | None:
        return self._on_a_broker(strike, self._pause)

    def _on_a_broker(
        self, strike: Strike, fault: Callable[[BrokerProcess, Strike], Awaitable[None]]
    ) -> Awaitable[None] | None:
        up = [b for b in self._brokers.values() if not self._chronicle.is_afflicted(b.name)]
        role = ROLES.get(strike.kind)
        if role is not None:
            homes = self._plan.homes(role)
            up = [b for b in up if b.name in homes] or up
        broker = _chosen(up, strike.target)
        if broker is None or not broker.running:
            return None

        async def suffer() -> None:
            try:
                await fault(broker, strike)
            finally:
                self._chronicle.relieve(broker.name)

        self._chronicle.afflict(broker.name)
        return suffer()

    async def _kill(self, broker: BrokerProcess, strike: Strike) -> None:
        self._chronicle.note(f"{broker.name} is killed")
        broker.kill()
        await broker.ended()
        await self._while_it_lasts(strike.lasts_s)
        if strike.relapse_s is not None and not self._over.is_set():
            broker.spawn()
            await self._while_it_lasts(strike.relapse_s)
            self._chronicle.note(f"{broker.name} is killed while it recovers")
            broker.kill()
            await broker.ended()
        await self._recover(broker)

    async def _restart(self, broker: BrokerProcess, strike: Strike) -> None:
        self._chronicle.note(f"{broker.name} is stopped")
        if not await broker.stop():
            self._chronicle.history.odd("settles", f"{broker.name} did not stop; see {broker.log}")
        await self._while_it_lasts(strike.lasts_s)
        await self._recover(broker)

    async def _recover(self, broker: BrokerProcess) -> None:
        await broker.start()
        self._chronicle.recoveries += 1
        self._chronicle.note(f"{broker.name} is back")

    async def _pause(self, broker: BrokerProcess, strike: Strike) -> None:
        self._chronicle.note(f"{broker.name} is paused for {strike.lasts_s:.1f} s")
        broker.pause()
        await self._while_it_lasts(strike.lasts_s)
        broker.resume()

    # ── links ────────────────────────────────────────────────────────────────────────────

    def on_a_link(self, strike: Strike) -> Awaitable[None] | None:
        whole = [edge for edge in self._proxies if not self._chronicle.is_afflicted(edge)]
        edge = _chosen(whole, strike.target)
        return None if edge is None else self._break(edge, strike)

    def _break(self, edge: Edge, strike: Strike) -> Awaitable[None]:
        """Cut or stall a link."""
        proxy, kind = self._proxies[edge], strike.kind
        is_cut = kind.startswith("cut")

        async def suffer() -> None:
            what = "is cut" if is_cut else "carries nothing"
            self._chronicle.note(f"{named(edge)} {what} for {strike.lasts_s:.1f} s")
            (LinkProxy.cut if is_cut else LinkProxy.stall)(proxy)
            await self._while_it_lasts(strike.lasts_s)
            if kind.startswith("seize"):  # frames in transit never arrive
                self._chronicle.note(f"{named(edge)} is dead")
                proxy.cut()
            proxy.heal()
            self._chronicle.relieve(edge)

        self._chronicle.afflict(edge)
        return suffer()

    # ── clients on their way ─────────────────────────────────────────────────────────────

    def hit_broker(self, strike: Strike) -> Awaitable[None] | None:
        """Kill or pause a broker on the way of a client that moves."""
        way = self._set_out()
        if way is None:
            return None
        names = self._on_the_way(way, strike.kind)
        broker = self._brokers[_sure(_chosen(names, strike.target))]
        fault = self._pause if strike.kind.startswith("pause") else self._kill

        async def suffer() -> None:
            met = await self._meet(way, strike)
            if self._chronicle.is_afflicted(broker.name) or not broker.running:
                return
            self._chronicle.struck[met] += 1
            self._chronicle.afflict(broker.name)
            try:
                await fault(broker, strike)
            finally:
                self._chronicle.relieve(broker.name)

        return suffer()

    def hit_link(self, strike: Strike) -> Awaitable[None] | None:
        way = self._set_out()
        if way is None:
            return None
        path = self._plan.tree.path(way.source, way.target)
        edge = _sure(_chosen(self._plan.tree.edges_between(path[0], path[-1]), strike.target))

        async def suffer() -> None:
            met = await self._meet(way, strike)
            if not self._chronicle.is_afflicted(edge):
                self._chronicle.struck[met] += 1
                await self._break(edge, strike)

        return suffer()

    def hit_mover(self, strike: Strike) -> Awaitable[None] | None:
        way = self._set_out()
        if way is None:
            return None

        async def suffer() -> None:
            met = await self._meet(way, strike)
            if way.client.drop():
                self._chronicle.struck[met] += 1
                self._chronicle.note(f"the connection of {way.client.name} breaks")

        return suffer()

    def _set_out(self) -> Journey | None:
        return self._traffic.set_out() if isinstance(self._traffic, Movers) else None

    def _on_the_way(self, way: Journey, kind: Kind) -> Sequence[str]:
        """The brokers that a fault can hit."""
        if STATIONS[kind] == "source":
            return (way.source,)
        if STATIONS[kind] == "target":
            return (way.target,)
        path = self._plan.tree.path(way.source, way.target)
        return path[1:-1] or path

    async def _meet(self, way: Journey, strike: Strike) -> str:
        assert isinstance(self._traffic, Movers)
        met = await self._traffic.meet(way, strike.phase)
        who, on = way.client.name, f"{way.source} to {way.target}"
        self._chronicle.note(f"{who} moves from {on}, and is {met} when {strike.kind} strikes")
        return met

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def drop_client(self, strike: Strike) -> Awaitable[None] | None:
        client = self._client(strike)
        if client is None or not client.drop():
            return None
        self._chronicle.note(f"the connection of {client.name} breaks")
        return asyncio.sleep(0)

    def restart_client(self, strike: Strike) -> Awaitable[None] | None:
        client = self._client(strike)
        if client is None:
            return None
        home = client.home
        if strike.elsewhere is not None:
            home = _chosen(self._plan.inhabited, strike.elsewhere) or home
        self._chronicle.note(f"{client.name} is killed at {client.home}, and starts at {home}")
        self._traffic.restart(client, home, strike.lasts_s)
        return asyncio.sleep(0)

    def _client(self, strike: Strike) -> ChaosClient | None:
        return _chosen(self._traffic.living, strike.target)


def _sure(chosen: T | None) -> T:
    assert chosen is not None
    return chosen


def _chosen(candidates: Sequence[T], target: float) -> T | None:
    return candidates[int(target * len(candidates))] if candidates else None


STRIKES: Mapping[str, Callable[[Storm, Strike], Awaitable[None] | None]] = {
    "kill": Storm.kill,
    "kill_publisher": Storm.kill,
    "kill_middle": Storm.kill,
    "kill_subscriber": Storm.kill,
    "restart": Storm.restart,
    "pause": Storm.pause,
    "cut": Storm.on_a_link,
    "stall": Storm.on_a_link,
    "seize": Storm.on_a_link,
    "drop_client": Storm.drop_client,
    "restart_client": Storm.restart_client,
    "kill_source": Storm.hit_broker,
    "kill_target": Storm.hit_broker,
    "kill_path": Storm.hit_broker,
    "pause_source": Storm.hit_broker,
    "pause_target": Storm.hit_broker,
    "pause_path": Storm.hit_broker,
    "cut_path": Storm.hit_link,
    "seize_path": Storm.hit_link,
    "drop_mover": Storm.hit_mover,
}
