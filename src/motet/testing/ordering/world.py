"""A line of sites, an event service and its clients in virtual time: one agenda, one generator.

No wall clock, no set order: the same seed gives the same run, step for step, in any process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from random import Random
from types import MappingProxyType
from typing import Any

from motet.errors import InvariantError
from motet.ordering.contract import ClientEffects, Input
from motet.ordering.machine import OrderingMachine, OrderingOptions
from motet.sequencer.config import SiteConfig
from motet.testing.clock import Agenda
from motet.testing.faults import FaultMenu
from motet.testing.history import Spans
from motet.testing.ordering.clients import OrderClient
from motet.testing.ordering.history import OrderHistory, UnmetWait
from motet.testing.ordering.mishaps import OrderMishaps
from motet.testing.ordering.plan import draw_pairs, draw_plan
from motet.testing.ordering.recorder import OrderRecorder
from motet.testing.ordering.service import SimulatedService
from motet.testing.ordering.sites import SimulatedSite, SimulatedWitness
from motet.testing.topology import edge_of
from motet.testing.trace import Trace
from motet.testing.transport import Network, Wire

NOTHING: Mapping[str, Any] = MappingProxyType({})
MOST_STEPS = 400_000
"""Far above what any run needs: more steps mean an endless loop."""
LAST_S = 15.0
"""Time for the events that are published at the end."""


class RunHalted(Exception):
    """A machine is broken; further steps would be meaningless."""


class World:
    def __init__(
        self,
        seed: int,
        menu: FaultMenu,
        *,
        needs: Mapping[str, Any] = NOTHING,
        story: bool = False,
        crash_at: int | None = None,
    ) -> None:
        self.random = Random(f"ordering {seed}")
        self.chance = Random(f"ordering {seed} pairs")
        """For all that concerns standbys."""
        self.plan = draw_pairs(self.chance, draw_plan(self.random, needs), needs)
        self.menu = menu
        self.crash_at = crash_at
        self.agenda = Agenda()
        self.trace = Trace(story=story)
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """What happened, for the report."""
        self.history = OrderHistory(mode=self.plan.mode)
        self.recorder = OrderRecorder(self, self.history)
        self.network = Network(self.agenda, self.random, self.faults, self.plan.hop_s)
        self.line = tuple(f"S{n}" for n in range(self.plan.sites))
        self.topics = [f"t{n}" for n in range(self.plan.topics)]
        self.placement = {topic: self.random.choice(self.line) for topic in self.topics}
        self.depths: dict[int, int] = {}
        self.site_steps = self.replayed = self.validated = 0
        self.acting = True
        self._events = self._tickets = 0
        self.sites = {name: SimulatedSite(self, name) for name in self.line}
        """All replicas, by address."""
        self.wires: list[Wire] = []
        self.wire_between: dict[frozenset[str], Wire] = {}
        """By the addresses of its two ends."""
        for one, other in combinations(self.line, 2):
            wire = self.network.wire(edge_of(one, other), menu, Spans())
            self._add_wire(wire)
        self.witness: SimulatedWitness | None = None
        self.pairs: dict[str, tuple[str, str]] = {}
        """By site with a standby: its replicas."""
        self._add_pairs()
        self.addresses = {name: ",".join(self.pairs.get(name, (name,))) for name in self.line}
        self.processes: dict[str, SimulatedSite] = dict(self.sites)
        if self.witness is not None:
            self.processes[self.witness.name] = self.witness
        self.service = SimulatedService(self)
        self.clients: list[OrderClient] = []
        self.mishaps = OrderMishaps(self)

    def _add_wire(self, wire: Wire) -> None:
        self.wires.append(wire)
        self.wire_between[frozenset(wire.edge)] = wire

    def _add_pairs(self) -> None:
        plan = self.plan
        for name in self.line[: plan.standbys]:
            second = f"{name}b"
            self.pairs[name] = (name, second)
            self.sites[second] = SimulatedSite(self, second, name)
        if self.pairs and plan.witness:
            self.witness = SimulatedWitness(self, "W")
        for one, other in combinations(self.sites, 2):
            if frozenset((one, other)) not in self.wire_between:
                sites = self.sites[one].site, self.sites[other].site
                like = self.wire_between.get(frozenset(sites))
                self._add_wire(Wire((one, other), one, () if like is None else like.rates, Spans()))
                self.wires[-1].hop_s = plan.near_s if like is None else None
        if self.witness is not None:
            for name in self.sites:
                self._add_wire(Wire((name, "W"), name, (), Spans()))
                self.wires[-1].hop_s = plan.near_s

    # ── what is drawn and counted ────────────────────────────────────────────────────────

    def settings(self, replica: SimulatedSite) -> SiteConfig:
        site = replica.site
        pair = self.pairs.get(site, (site,))
        second = replica.name != site
        return SiteConfig(
            site,
            line=self.line,
            placement=tuple(self.placement.items()),
            elsewhere=self.line[0],
            mode=self.plan.mode,
            incarnation=2 * replica.folders - (not second),
            lease_s=self.plan.lease_s,
            keep_s=self.plan.keep_s,
            addresses={name: self.addresses[name] for name in self.line},
            dials={
                other: self.addresses[other]
                for other in self.line
                if other != site and self.wire_between[frozenset((site, other))].dialler == site
            },
            address=replica.name,
            other=(pair[0] if second else pair[1]) if len(pair) > 1 else "",
            second=second,
            witness="W" if self.witness is not None and len(pair) > 1 else "",
            patience_s=self.plan.patience_s,
        )

    def machine(self, client: str) -> OrderingMachine:
        return OrderingMachine(client, OrderingOptions(lossless=self.plan.lossless))

    def new_event(self) -> int:
        self._events += 1
        return self._events

    def new_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def note(self, text: str) -> None:
        self.trace.note(self.agenda.now, text)

    def odd(self, guarantee: str, detail: str) -> None:
        self.history.oddities.append((guarantee, detail))

    def broken(self, name: str, given: object, problem: Exception) -> None:
        text = f"{type(problem).__name__}: {problem}"
        self.odd("invariants", f"{name} at {given}: {text}")
        raise RunHalted(text) from problem

    def client_stepped(self, name: str, given: Input, effects: ClientEffects) -> None:
        trace = self.trace
        calls = [(call.kind, call.topic, call.ticket) for call in effects.calls]
        what = f"{type(given).__name__} {calls} {effects.events} {effects.told}"
        trace.client(self.agenda.now, name, what, [frame for _, frame in effects.sends])
        if trace.steps > MOST_STEPS:
            self.odd("settles", f"more than {MOST_STEPS} steps")
            raise RunHalted("runaway")
        if trace.story is not None:
            tell(trace, self.agenda.now, name, given, effects)

    # ── lives ────────────────────────────────────────────────────────────────────────────

    def new_client(self, name: str, *, acts: bool = True) -> OrderClient:
        client = OrderClient(self, name, self.random.choice(self.line))
        self.clients.append(client)
        client.start()
        if acts:
            client.application.begin()
        return client

    def replace(self, client: OrderClient) -> None:
        """A process dies, and another one takes its place."""
        client.kill()
        family, _, number = client.name.partition(".")
        self.agenda.after(
            self.random.uniform(0.05, 2.0), self._succeed, f"{family}.{int(number) + 1}"
        )

    def _succeed(self, name: str) -> None:
        self.new_client(name, acts=self.acting)

    def restart_soon(self, site: SimulatedSite) -> None:
        site.kill()
        self.faults["kill"] += 1
        self.agenda.after(self.random.uniform(0.05, 2.0), self._restart, site)

    def _restart(self, site: SimulatedSite) -> None:
        if site.core is None:
            site.start()

    def pause_client(self, client: OrderClient) -> None:
        """It stands still; some longer than the lease, some longer than streams are kept."""
        longest_s = self.random.choice((self.plan.lease_s, self.plan.keep_s)) * 1.6
        client.pause()
        self.note(f"{client.name} stands still")
        self.agenda.after(self.random.uniform(0.1, longest_s), client.go_on)

    # ── the run ──────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        try:
            self.chaos()
            self.rest()
        except RunHalted:
            self.odd("invariants", "the run ended early")

    def chaos(self) -> None:
        plan = self.plan
        service = "lossless" if plan.lossless else "lossy"
        self.note(f"mode {plan.mode}, {plan.sites} sites, {plan.topics} topics, {service} service")
        self.note(f"leases last {plan.lease_s:g} s, streams are kept {plan.keep_s:g} s")
        self.note(f"placement {self.placement}")
        if self.pairs:
            witness = "a witness" if self.witness is not None else "no witness"
            self.note(f"{', '.join(self.pairs)} have standbys, and {witness}")
        for site in self.processes.values():
            site.start()
        for number in range(plan.clients):
            self.new_client(f"c{number}.1")
        self.mishaps.begin()
        self.agenda.run(plan.chaos_s)

    def rest(self) -> None:
        """Faults end, then acts; everything must come to rest, and be able to go on."""
        self.mishaps.stop()
        self.note("no more faults")
        self.agenda.run(self.agenda.now + 1.0)
        self.acting = False
        self.note("no more acts")
        self.agenda.run(self.agenda.now + self.plan.quiet_s)
        self._note_waits()
        living = [client for client in self.clients if not client.over]
        if living:
            self.note("one event more on each topic")
            for topic in self.topics:
                self.random.choice(living).application.publish(topic)
        self.agenda.run(self.agenda.now + LAST_S)
        self._note_waits()
        for name, site in self.sites.items():
            site.audit()
            self.validated += 1
            try:
                if site.core is not None:
                    site.core.validate()
            except InvariantError as problem:
                self.odd("invariants", f"{name} at rest: {problem}")
        self._compare_pairs()

    def _compare_pairs(self) -> None:
        """At rest each pair has one primary, and a standby with the same state."""
        for name, replicas in self.pairs.items():
            cores = [self.sites[each].core for each in replicas]
            if None in cores:
                continue
            leading = [core for core in cores if core.durable.seat.leads]
            if len(leading) != 1:
                self.odd("invariants", f"{len(leading)} replicas of {name} lead at rest")
                continue
            account = leading[0].pair.account()
            if not account["in_step"] or account["stalled"]:
                self.odd("settles", f"the standby of {name} is not in step at rest: {account}")
            elif not leading[0].withheld():
                self.validated += 1
                one, other = (core.durable.site_digest() for core in cores)
                if one != other:
                    self.odd("replay", f"the replicas of {name} have different states")

    def _note_waits(self) -> None:
        waits: list[UnmetWait] = []
        for client in self.clients:
            if not client.over:
                waits += client.application.waits()
        self.history.waits += waits


def tell(trace: Trace, at: float, name: str, given: Input, effects: ClientEffects) -> None:
    """One step of a client, for the story."""
    assert trace.story is not None
    lines = [
        *(f"to {site or 'the first site'}: {frame}" for site, frame in effects.sends),
        *(
            f"asks the service to {call.kind} {call.topic} ({call.ticket})"
            for call in effects.calls
        ),
        *(
            f"stream {stream} gets {event.topic}#{event.number}, event "
            f"{event.payload.decode()}{', late' if event.late else ''}"
            for stream, event in effects.events
        ),
        *(f"tells {news}" for news in effects.told),
        *(f"answers {ticket} with {result!r}" for ticket, result in effects.receipts),
    ]
    if lines or type(given).__name__ != "Tick":
        trace.story.append(f"{at:9.4f}  {name}: {given}")
        trace.story.extend(f"{'':9}      {line}" for line in lines)
