"""Draws, injects and counts the faults of a run; `stop` repairs everything that can be repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.protocol.contract import Received
from motet.protocol.sequencing.standby import PromoteRequest
from motet.testing.ordering.clients import DOOMS, OrderClient
from motet.testing.ordering.plan import FAULTS, PAIR_FAULTS
from motet.testing.ordering.sites import SimulatedSite
from motet.testing.transport import Wire

if TYPE_CHECKING:
    from motet.testing.ordering.world import World

CUT_S = (0.1, 3.0)
SLOW_DISK_S = (0.05, 0.4)
PARTED_S = (0.5, 6.0)
PAUSE_S = (0.2, 3.0)
FORESIGHT_S = 0.05
JUMP_S = (0.5, 10.0)
DARK_S = (0.1, 3.0)
ISOLATED_S = (0.5, 8.0)
SLOW_S = (0.5, 4.0)


class OrderMishaps:
    def __init__(self, world: World) -> None:
        self._world = world
        faults = {kind: world.plan.faults.get(kind, 0.0) for kind in FAULTS}
        if world.pairs and any(faults.values()):
            faults |= PAIR_FAULTS
        self._kinds = list(faults)
        self._weights = list(faults.values())
        self._running = False

    def begin(self) -> None:
        self._running = any(self._weights) and self._world.plan.pace_s > 0
        if self._running:
            self._next()

    def stop(self) -> None:
        world = self._world
        self._running = False
        world.service.faultless = True
        world.service.slow_topics.clear()
        for wire in world.wires:
            wire.heal()
        for site in world.processes.values():
            site.go_on()
            site.doomed = False
            site.slow_disk_s = 0.0
            if site.disk_fails:
                world.restart_soon(site)
        for client in world.clients:
            client.go_on()
            client.doom = client.stall = ""
            client.isolated = False
            if not client.over:
                world.service.resume(client)

    def _next(self) -> None:
        world = self._world
        world.agenda.after(world.random.expovariate(1.0 / world.plan.pace_s), self._strike)

    def _strike(self) -> None:
        if not self._running:
            return
        self._next()
        kind = self._world.random.choices(self._kinds, self._weights)[0]
        if getattr(self, kind)():
            self._world.faults[kind] += 1

    def _later(self, span_s: tuple[float, float], action: object, *args: object) -> None:
        world = self._world
        world.agenda.after(world.random.uniform(*span_s), action, *args)  # type: ignore[arg-type]

    def _site(self) -> SimulatedSite | None:
        able = [site for site in self._world.sites.values() if site.core and not site.paused]
        return self._world.random.choice(able) if able else None

    def _client(self) -> OrderClient | None:
        able = [each for each in self._world.clients if not each.over and not each.paused]
        return self._world.random.choice(able) if able else None

    # ── sites ────────────────────────────────────────────────────────────────────────────

    def kill(self) -> bool:
        """Counted when it dies."""
        site = self._site()
        if site is not None:
            site.foresee_death()
            self._later((0.0, FORESIGHT_S), self._strike_down, site)
        return False

    def _strike_down(self, site: SimulatedSite) -> None:
        if not self._running or site.core is None:
            return
        if self._world.random.random() < 0.5:
            site.doomed = True
        else:
            self._world.restart_soon(site)

    def disk_failure(self) -> bool:
        site = self._site()
        if site is None:
            return False
        site.foresee_death()
        site.fail_disk()
        return True

    def snapshot(self) -> bool:
        site = self._site()
        if site is None:
            return False
        site.take_snapshot()
        return True

    def cut(self) -> bool:
        world = self._world
        if not world.wires:
            return False
        wire = world.random.choice(world.wires)
        self._cut(wire, CUT_S)
        return True

    def _cut(self, wire: Wire, span_s: tuple[float, float]) -> None:
        world = self._world
        one = world.processes[wire.edge[0]]
        for end in list(one.ends.values()):
            if end.connection.wire is wire:
                world.network.sever(end.connection)
        wire.cut += 1
        world.note(f"the link {'–'.join(wire.edge)} is cut")
        self._later(span_s, self._heal, wire)

    def _heal(self, wire: object) -> None:
        wire.cut = max(0, wire.cut - 1)  # type: ignore[attr-defined]

    def pause_site(self) -> bool:
        site = self._site()
        if site is None:
            return False
        site.pause()
        self._world.note(f"{site.name} stands still")
        self._later(PAUSE_S, site.go_on)
        return True

    def site_clock(self) -> bool:
        site = self._site()
        if site is None:
            return False
        ahead_s = self._world.random.uniform(*JUMP_S)
        self._world.note(f"the clock of {site.name} jumps by {ahead_s:.3f} s")
        site.timers.jump(ahead_s)
        return True

    # ── pairs ────────────────────────────────────────────────────────────────────────────

    def _primary(self) -> SimulatedSite | None:
        """One that believes to be it, and has a standby; there may be two of a site."""
        world = self._world
        able = [
            site
            for site in world.sites.values()
            if site.site in world.pairs and site.core and not site.paused
            if site.core.durable.seat.leads
        ]
        return world.random.choice(able) if able else None

    def kill_primary(self) -> bool:
        """Counted when it dies."""
        site = self._primary()
        if site is not None:
            site.foresee_death()
            self._later((0.0, FORESIGHT_S), self._strike_down, site)
        return False

    def kill_witness(self) -> bool:
        witness = self._world.witness
        if witness is None or witness.core is None:
            return False
        self._world.restart_soon(witness)
        return True

    def part(self) -> bool:
        """A primary reaches neither its standby nor the witness, but its clients."""
        site = self._primary()
        if site is None:
            return False
        aside = {"W", *self._world.pairs[site.site]}
        for wire in self._world.wires:
            if site.name in wire.edge and aside >= set(wire.edge):
                self._cut(wire, PARTED_S)
        return True

    def pause_primary(self) -> bool:
        site = self._primary()
        if site is None:
            return False
        site.pause()
        self._world.note(f"{site.name} stands still")
        self._later(PAUSE_S, site.go_on)
        return True

    def slow_disk(self) -> bool:
        site = self._site()
        if site is None:
            return False
        site.slow_disk_s = self._world.random.uniform(*SLOW_DISK_S)
        self._world.note(f"the disk of {site.name} is slow")
        self._later(SLOW_S, self._fast_disk, site)
        return True

    def _fast_disk(self, site: SimulatedSite) -> None:
        site.slow_disk_s = 0.0

    def fresh_standby(self) -> bool:
        """A standby loses its folder. Not one that may be needed: two faults at once."""
        world = self._world
        able = [
            site
            for site in world.sites.values()
            if site.site in world.pairs and site.core and not site.paused
            if not site.core.durable.seat.leads and not self._is_counted_on(site)
        ]
        if not able:
            return False
        site = world.random.choice(able)
        world.restart_soon(site)
        site.lose_folder()
        world.note(f"{site.name} loses its folder")
        return True

    def _is_counted_on(self, site: SimulatedSite) -> bool:
        """It leads, or is in step, according to the witness or to its primary."""
        world, me = self._world, site.core.durable.seat.me
        if world.witness is not None:
            core = world.witness.core
            register = None if core is None else core.durable.registers.get(site.site)
            return register is None or me in (register.primary, register.standby)
        others = [world.sites[name] for name in world.pairs[site.site] if name != site.name]
        return any(
            other.core is None
            or not other.core.durable.seat.leads
            or other.core.durable.seat.standby == me
            for other in others
        )

    def promote(self) -> bool:
        """An operator tries it, without taking a risk."""
        world = self._world
        able = [s for s in world.sites.values() if s.site in world.pairs and s.core]
        if not able:
            return False
        site = world.random.choice(able)
        number = site.new_number()
        before = site.core.durable.seat.leads
        site.step(Received(number, PromoteRequest()))
        if site.core is None or site.paused or before == site.core.durable.seat.leads:
            return False
        world.note(f"an operator promotes {site.name}")
        return True

    # ── clients ──────────────────────────────────────────────────────────────────────────

    def client_clock(self) -> bool:
        client = self._client()
        if client is None:
            return False
        ahead_s = self._world.random.uniform(*JUMP_S)
        self._world.note(f"the clock of {client.name} jumps by {ahead_s:.3f} s")
        client.timers.jump(ahead_s)
        return True

    def drop_client(self) -> bool:
        client = self._client()
        if client is None:
            return False
        self._world.note(f"{client.name} loses its connections to sites")
        client.drop()
        return True

    def isolate_client(self) -> bool:
        """It cannot reach any site for a while; its streams may expire."""
        client = self._client()
        if client is None:
            return False
        client.isolated = True
        client.drop()
        self._world.note(f"{client.name} cannot reach any site")
        self._later(ISOLATED_S, self._reach, client)
        return True

    def _reach(self, client: OrderClient) -> None:
        client.isolated = False

    def kill_client(self) -> bool:
        client = self._client()
        if client is None:
            return False
        self._world.replace(client)
        return True

    def kill_publisher(self) -> bool:
        """Counted when it dies."""
        client = self._client()
        if client is not None:
            client.doom = self._world.random.choice(DOOMS)
        return False

    def pause_client(self) -> bool:
        client = self._client()
        if client is None:
            return False
        self._world.pause_client(client)
        return True

    def pause_publisher(self) -> bool:
        """Counted when it stands still."""
        client = self._client()
        if client is not None:
            client.stall = self._world.random.choice(DOOMS)
        return False

    # ── the service ──────────────────────────────────────────────────────────────────────

    def interrupt_client(self) -> bool:
        client = self._client()
        if client is None:
            return False
        self._world.note(f"{client.name} loses the service")
        self._dark([client])
        return True

    def interrupt_service(self) -> bool:
        self._world.note("the service is down")
        self._dark([client for client in self._world.clients if not client.over])
        return True

    def _dark(self, clients: list[OrderClient]) -> None:
        for client in clients:
            self._world.service.interrupt(client)
        self._later(DARK_S, self._light, clients)

    def _light(self, clients: list[OrderClient]) -> None:
        for client in clients:
            if not client.over:
                self._world.service.resume(client)

    def slow_topic(self) -> bool:
        world = self._world
        topic = world.random.choice(world.topics)
        world.service.slow_topics[topic] = world.agenda.now + world.random.uniform(*SLOW_S)
        return True
