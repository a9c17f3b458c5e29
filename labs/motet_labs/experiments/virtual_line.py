"""The same sites, links and load in virtual time: the real cores over the simulator's transport.

Nothing takes time but the links: no processor, no disk, no queue. What the same load takes longer
in reality is due to these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from motet.placement.graph import TopicPlacement
from motet.protocol.contract import Dialled, Input, Output, Received, SetTimer, TimerFired
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.sequencing.messages import (
    ChangeRequest,
    Numbers,
    OrderHello,
    TopicIds,
    TopicQuery,
)
from motet.sequencer.config import SiteConfig
from motet.sequencer.core import SiteCore
from motet.testing.clock import Agenda, Timers, VirtualClock
from motet.testing.transport import Connection, End
from motet_labs.experiments import region_load
from motet_labs.experiments.region_load import RequestAccount, latency_of, pulsed
from motet_labs.experiments.regions import Regions, name_of
from motet_labs.experiments.site_line import HEARTBEAT_S, KEPT_S, LEASE_S
from motet_labs.experiments.wide_links import Delay, between_sites, delays, from_region

CALM_S: Final = 5.0
"""Longer than any way up the line and back."""


class VirtualLinks:
    """Each end of a connection has the delay of what is sent there."""

    def __init__(self, agenda: Agenda) -> None:
        self.delays: dict[End, Delay] = {}
        self.origin_s = 0.0
        """When the clock of the links was at 0."""
        self._agenda = agenda

    def carry(self, end: End, frame: Frame) -> None:
        """In order."""
        now = self._agenda.now
        due = now + self.delays[end].at(now - self.origin_s)
        end.last_arrival = max(end.last_arrival, due)
        self._agenda.at(end.last_arrival, end.peer.owner.receive, end.peer, frame)


class VirtualSite:
    def __init__(self, line: VirtualLine, config: SiteConfig) -> None:
        self.name = config.name
        self.core = SiteCore(config)
        self.ends: dict[int, End] = {}
        self._line = line
        clock = VirtualClock(line.agenda)
        self._timers = Timers(line.agenda, clock, lambda key: self.step(TimerFired(key)))
        self._carry(self.core.recover(0.0))

    def accept(self, end: End) -> None:
        self.ends[end.number] = end

    def receive(self, end: End, frame: Frame) -> None:
        self.step(Received(end.number, frame))

    def lost(self, end: End) -> None:
        raise AssertionError(f"{self.name} has lost {end.peer.owner.name}")

    def step(self, given: Input) -> None:
        self._carry(self.core.step(given, self._line.agenda.now))

    def _carry(self, out: Output) -> None:
        assert not out.close, out.close
        for number, frame in (*out.send, *out.deliver):
            self._line.links.carry(self.ends[number], frame)
        for timer in out.timers:
            if isinstance(timer, SetTimer):
                self._timers.set(timer.key, timer.at)
            else:
                self._timers.cancel(timer.key)


class VirtualClients:
    """The clients of a region, at one site."""

    def __init__(self, line: VirtualLine, name: str) -> None:
        self.name = name
        self.account = RequestAccount()
        self.ids: dict[str, int] = {}
        self._line = line

    def receive(self, end: End, frame: Frame) -> None:
        del end
        if isinstance(frame, Numbers):
            self.account.answer(frame.first, len(frame.stamps), self._line.agenda.now)
        elif isinstance(frame, TopicIds):
            self.ids = frame.ids

    def lost(self, end: End) -> None:
        raise AssertionError(f"{self.name} has lost {end.peer.owner.name}")


class VirtualLine:
    def __init__(
        self,
        regions: Regions,
        placement: TopicPlacement,
        mode: str,
        streams: Sequence[Sequence[int]],
    ) -> None:
        self.agenda = Agenda()
        self.links = VirtualLinks(self.agenda)
        self._regions = regions
        self._connections = 0
        line = placement.line
        self._sites = {
            name: VirtualSite(
                self,
                SiteConfig(
                    name,
                    line,
                    tuple(placement.homes.items()),
                    mode=mode,
                    lease_s=LEASE_S,
                    keep_s=KEPT_S,
                    heartbeat_s=HEARTBEAT_S,
                ),
            )
            for name in line
        }
        for place, lower in enumerate(line):
            for higher in line[place + 1 :]:
                self._link(lower, higher)
        self._clients = {
            (number, site): self._connect(number, region, site)
            for number, region in enumerate(sorted(line))
            for site in line
        }
        self._homes = [placement.site_of(name_of(topic)) for topic in range(regions.topics)]
        self._ids: dict[int, int] = {}
        self._subscribe(streams)

    # ── before the load ──────────────────────────────────────────────────────────────────

    def _join(self, one: Any, other: Any, name: str, link: Any) -> tuple[End, End]:
        self._connections += 2
        connection = Connection(one, self._connections, other, self._connections + 1, None)
        for end, delay in zip(connection.ends, delays(link, name).values(), strict=True):
            self.links.delays[end] = delay
        return connection.ends

    def _link(self, lower: str, higher: str) -> None:
        dialler, other = self._sites[higher], self._sites[lower]
        mine, theirs = self._join(dialler, other, *between_sites(lower, higher))
        dialler.accept(mine)
        other.accept(theirs)
        dialler.step(Dialled(mine.number, lower))

    def _connect(self, number: int, region: str, site: str) -> tuple[VirtualClients, End]:
        clients = VirtualClients(self, f"publishers of {number}")
        mine, theirs = self._join(clients, self._sites[site], *from_region(region, site))
        self._sites[site].accept(theirs)
        self.links.carry(mine, OrderHello(PROTOCOL_VERSION, clients.name))
        return clients, mine

    def _subscribe(self, streams: Sequence[Sequence[int]]) -> None:
        for (_, site), (_, end) in self._clients.items():
            names = [name_of(topic) for topic, home in enumerate(self._homes) if home == site]
            if names:
                self.links.carry(end, TopicQuery(tuple(names)))
        self._rest()
        ids = {name: number for clients, _ in self._clients.values()
               for name, number in clients.ids.items()}  # fmt: skip
        self._ids = {topic: ids[name_of(topic)] for topic in range(self._regions.topics)}
        sites = sorted(self._sites)
        for number, topics in enumerate(streams):
            region = number % len(sites)
            end = self._clients[region, sites[region]][1]
            chosen = tuple(self._ids[topic] for topic in topics)
            self.links.carry(end, ChangeRequest(f"{region}.{number}", 1, chosen))
        self._rest()
        homes = [home for site in self._sites.values() for home in site.core.site.homes.values()]
        assert len(homes) == len(streams)
        assert all(home.done == 1 for home in homes)

    def _rest(self) -> None:
        self.agenda.run(self.agenda.now + CALM_S)

    # ── load ─────────────────────────────────────────────────────────────────────────────

    def run(
        self,
        per_s: float,
        warm_s: float,
        seconds: float,
        seed: int,
        at_s: float = 0.0,
        pulse_s: float = region_load.PULSE_S,
    ) -> dict[str, Any]:
        """`at_s`: when the load begins on the clock of the links."""
        agenda = self.agenda
        began = agenda.now
        self.links.origin_s = began - at_s
        made = self._regions.publications(per_s, warm_s + seconds, pulse_s, seed)
        for pulse_at_s, rows in pulsed(made, self._homes, self._ids):
            agenda.at(began + pulse_at_s, self._pulse, rows)
        for clients, _ in self._clients.values():
            clients.account.forget()
        end = began + warm_s + seconds
        agenda.run(end + CALM_S)
        accounts = [clients.account for clients, _ in self._clients.values()]
        assert not any(account.open for account in accounts)
        took = [each for account in accounts for each in account.took]
        return latency_of(took, began + warm_s, end)

    def _pulse(self, rows: Sequence[tuple[int, str, list[int]]]) -> None:
        for region, site, topics in rows:
            clients, end = self._clients[region, site]
            self.links.carry(end, clients.account.request(self.agenda.now, topics))
