"""A process with the real machine of a client, in virtual time: its connections, its clock, and
what becomes of it. It may die, stand still, or lose its connections; another one takes its place.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from motet.ordering.contract import (
    ENTRY,
    PUBLISH,
    ClientEffects,
    Input,
    Notified,
    ServiceCall,
    ServiceDone,
    ServiceInterrupted,
    SiteClosed,
    SiteConnected,
    SiteFrame,
    Tick,
)
from motet.ordering.envelope import opened
from motet.ordering.machine import OrderingMachine
from motet.protocol.frames import Frame
from motet.protocol.sequencing.messages import Numbers, OrderWelcome
from motet.protocol.session.messages import Farewell
from motet.testing.clock import Timers, VirtualClock
from motet.testing.ordering.applications import Application, event_in
from motet.testing.ordering.history import EventSent
from motet.testing.transport import Connection, End

if TYPE_CHECKING:
    from motet.testing.ordering.world import World

REDIAL_S = (0.02, 0.4)
TICK = ("tick",)
DOOMS = ("numbered", "publishing", "published")
"""When a publisher dies, or stands still: as it gets numbers, before the call to the service gets
there, or before it knows that it did."""


class OrderClient:
    """One process. The name is that of the instance, which sites know."""

    def __init__(self, world: World, name: str, entry: str) -> None:
        self.world = world
        self.name = name
        self.machine: OrderingMachine = world.machine(name)
        self.application = Application(self)
        self.clock = VirtualClock(world.agenda)
        self.timers = Timers(world.agenda, self.clock, self._ring)
        self.over = False
        self.isolated = False
        """It cannot connect to any site."""
        self.doom = ""
        """At which of `DOOMS` it dies."""
        self.stall = ""
        """At which of `DOOMS` it stands still."""
        self.entry = entry
        """The site that is dialled first."""
        self._ends: dict[str, End] = {}
        """By site, as the machine names it."""
        self._wanted: dict[str, None] = {}
        self._connections = self._turns = 0
        self._now = self._due = 0.0
        self._inbox: list[Any] | None = None
        world.service.attach(self)

    def start(self) -> None:
        self._want(ENTRY)
        self.step(Tick())

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        if self.over:
            return
        self.over = True
        self.world.note(f"{self.name} dies")
        self.world.service.detach(self)
        self.timers.clear()
        for end in list(self._ends.values()):
            self.world.network.abandon(end)
        self._ends.clear()
        self.application.excuse()

    def pause(self) -> None:
        if self._inbox is None:
            self._inbox = []

    def go_on(self) -> None:
        waiting, self._inbox = self._inbox or [], None
        for action, *args in waiting:
            action(*args)

    @property
    def paused(self) -> bool:
        return self._inbox is not None

    def drop(self) -> None:
        """All connections to sites break."""
        for end in list(self._ends.values()):
            self.world.network.sever(end.connection)

    def _doomed(self, when: str) -> bool:
        """Whether it ends here, or stands still from here on."""
        if self.doom == when:
            self.world.faults["kill_publisher"] += 1
            self.doom = ""
            self.world.replace(self)
            return True
        if self.stall == when:
            self.stall = ""
            self.world.faults["pause_publisher"] += 1
            self.world.pause_client(self)
        return False

    # ── connections to sites ─────────────────────────────────────────────────────────────

    def _want(self, site: str) -> None:
        if site not in self._wanted:
            self._wanted[site] = None
            self._dial_soon(site)

    def _dial_soon(self, site: str) -> None:
        self.world.agenda.after(self.world.random.uniform(*REDIAL_S), self._dial, site)

    def _dial(self, site: str) -> None:
        if self.over or site in self._ends or site not in self._wanted:
            return
        named = self.machine.addresses.get(site, "") if site else self.world.addresses[self.entry]
        turns = named.split(",")
        self._turns += 1
        other = self.world.sites[turns[self._turns % len(turns)]]
        if other.core is None or other.paused or self.isolated or self.paused:
            self._dial_soon(site)
            return
        self._connections += 1
        connection = Connection(self, self._connections, other, other.new_number(), None)
        mine, theirs = connection.ends
        other.accept(theirs)
        self._ends[site] = mine
        self.step(SiteConnected(site))

    def connections(self) -> list[End]:
        return list(self._ends.values())

    def _site_of(self, end: End) -> str | None:
        return next((site for site, each in self._ends.items() if each is end), None)

    def receive(self, end: End, frame: Frame) -> None:
        if self.over:
            return
        if self._inbox is not None:
            self._inbox.append((self.receive, end, frame))
            return
        site = self._site_of(end)
        if site is None:
            return
        if isinstance(frame, Farewell):
            self.world.network.close(end)
            self.lost(end)
            return
        if isinstance(frame, Numbers) and self._doomed("numbered"):
            return
        if self._inbox is not None:  # it stands still from here on
            self._inbox.append((self.receive, end, frame))
            return
        if isinstance(frame, OrderWelcome) and site == ENTRY:
            self._ends[frame.site] = self._ends.pop(ENTRY)
            self._wanted.pop(ENTRY)
            self._wanted[frame.site] = None
        self.world.recorder.heard(frame)  # type: ignore[arg-type]
        self.step(SiteFrame(site, frame))  # type: ignore[arg-type]

    def lost(self, end: End) -> None:
        if self.over:
            return
        if self._inbox is not None:
            self._inbox.append((self.lost, end))
            return
        site = self._site_of(end)
        if site is not None:
            del self._ends[site]
            self.step(SiteClosed(site))
            self._dial_soon(site)

    # ── the service ──────────────────────────────────────────────────────────────────────

    def called(self, ticket: int, error: str) -> None:
        if self._inbox is None and not self.over and self._doomed("published"):
            return
        self.step(ServiceDone(ticket, error))

    def notify(self, topic: str, body: bytes) -> None:
        self.step(Notified(topic, body))

    def interrupted(self) -> None:
        self.step(ServiceInterrupted())

    # ── steps ────────────────────────────────────────────────────────────────────────────

    def _ring(self, _: tuple[object, ...]) -> None:
        # A clock that has jumped may round to a little before the time of the alarm.
        self._now = max(self._now, self._due)
        self.step(Tick())

    def step(self, given: Input) -> None:
        if self.over:
            return
        if self._inbox is not None:
            self._inbox.append((self.step, given))
            return
        world = self.world
        self._now = max(self._now, self.clock.now())
        try:
            effects = self.machine.step(given, self._now)
        except Exception as problem:
            world.broken(self.name, given, problem)
        world.client_stepped(self.name, given, effects)
        self._carry(effects)

    def _carry(self, effects: ClientEffects) -> None:
        for site in effects.dials:
            self._want(site)
        for site, frame in effects.sends:
            end = self._ends.get(site)
            if end is not None:
                self.world.recorder.said(self.name, site or self.entry, frame)
                self.world.network.carry(end, frame)
        self._due = effects.wake_at
        if effects.wake_at < inf:
            self.timers.set(TICK, effects.wake_at)
        else:
            self.timers.cancel(TICK)
        for call in effects.calls:
            self._call(call)
            if self.over:
                return
        self.application.take(effects)

    def _call(self, call: ServiceCall) -> None:
        if call.kind == PUBLISH:
            for stamp, payload in opened(call.body) or ():
                topic = self.world.recorder.name(stamp.topic)
                self.world.history.sent.append(EventSent(topic, stamp.number, event_in(payload)))
            if self._doomed("publishing"):
                return
        self.world.service.call(self, call.ticket, call.kind, call.topic, call.body)
