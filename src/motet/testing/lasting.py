"""Durable clients of a cluster: who is one, how they leave, come back and replace each other."""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING

from motet.broker.facts import SessionDropped, SessionEnded, SessionOpened
from motet.testing.durables import Application
from motet.testing.history import Opening

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient
    from motet.testing.cluster import Cluster

OWN = 0.5
"""The share of applications that write their own cursors down."""
FORGETS = 0.2
"""The chance that a client that leaves wants nothing to be kept."""
CARELESS = 0.1
"""The chance that somebody uses the id of a durable client without being one."""
AWAY_S = (0.0, 6.0)
TOLERANCE_S = 1e-6
RETURNS = 0.8
"""The chance that who is away in the end comes back before all comes to rest."""


class Lasting:
    """Draws from a source of its own: what else a seed draws does not depend on it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(f"durable {seed}")
        self._applications: dict[str, Application] = {}
        self._opened: set[str] = set()
        self._left: dict[tuple[str, str], float] = {}
        """By broker and client: since when nobody is there, by its broker's clock."""

    def application(self, name: str, instance: int, home: str) -> Application | None:
        """Of a process that begins; None if it is an ordinary client."""
        plan, random = self._cluster.plan, self._random
        if not plan.durable:
            return None
        if name:
            known = self._applications.get(name)
            return None if known is None or random.random() < CARELESS else known
        if random.random() >= plan.durable:
            return None
        name = f"c{instance}"
        own = random.random() < OWN
        made = Application(name, home, own, plan.keep_s, random)
        self._applications[name] = made
        return made

    def draw_since(self, client: SimulatedClient, action: str) -> dict[str, int] | None:
        plan, process = self._cluster.plan, client.process
        if action != "subscribe" or not plan.since or client.machine.total_order:
            return None
        if process and process.application.own:
            return None  # who has cursors of its own goes on from there
        return {"": 0} if self._random.random() < plan.since else None

    # ── leaving and coming back ──────────────────────────────────────────────────────────

    def forgets(self) -> bool:
        return bool(self._cluster.plan.durable) and self._random.random() < FORGETS

    def return_later(self, client: SimulatedClient) -> bool:
        """A process of a durable client has ended; another one will come."""
        if client.process is None:
            return False
        application = client.process.application
        self._cluster.agenda.after(self._random.uniform(*AWAY_S), self._return, application)
        return True

    def _return(self, application: Application) -> None:
        here = [c for c in self._cluster.clients if c.name == application.name and not c.over]
        if not here and self._cluster.acting:
            self._cluster.arrive(application.name, application.home)

    def return_all(self) -> None:
        """Faults have stopped: most of those who are away come back."""
        for application in self._applications.values():
            if self._random.random() < RETURNS:
                self._return(application)

    # ── who has which session ────────────────────────────────────────────────────────────

    def adopted(self, newcomer: SimulatedClient, epoch: str, broker: str) -> bool:
        """A broker has given somebody a session: was it one that was there before?"""
        if epoch not in self._opened:
            self._opened.add(epoch)
            self._check_that_none_is_left(newcomer, epoch, broker)
            return False
        cluster, now = self._cluster, self._cluster.agenda.now
        instance = newcomer.instance
        opening = Opening(newcomer.name, instance, epoch, broker, now, None, (), adopted=True)
        cluster.history.openings.append(opening)
        newcomer.begins(epoch)
        for other in cluster.clients:
            if other is not newcomer and epoch in (other.opened, other.machine.epoch):
                other.outdone(now, adopted=True)
        return True

    def _check_that_none_is_left(self, newcomer: SimulatedClient, epoch: str, broker: str) -> None:
        application = self._applications.get(newcomer.name)
        for left in application.sessions.values() if application is not None else ():
            if left.ended_at == inf and left.broker == broker:
                text = f"{newcomer.title} was given {epoch}, though {left.epoch} is kept for it"
                self._cluster.history.odd("sessions", text)

    def noted(
        self, broker: str, now: float, fact: SessionOpened | SessionDropped | SessionEnded
    ) -> None:
        """A broker has written down, by its own clock, that a session has begun, lost its client,
        or ended: durable ones end for nobody else to see."""
        application = self._applications.get(fact.client)
        if application is None:
            return
        if isinstance(fact, SessionOpened):
            self._left.pop((broker, fact.client), None)
        elif isinstance(fact, SessionDropped):
            self._left[broker, fact.client] = now
        elif (session := application.sessions.get(fact.epoch)) is not None:
            session.end(self._cluster.agenda.now)
            away_s = now - self._left.get((broker, fact.client), -inf)
            if away_s < application.keep_s - TOLERANCE_S:
                text = f"{fact.epoch} of {fact.client} was kept for {away_s:.4f} s only"
                self._cluster.history.odd("sessions", text)

    def forgotten(self, broker: str) -> None:
        """A broker has come back with nothing."""
        for application in self._applications.values():
            for session in application.sessions.values():
                if session.broker == broker:
                    session.end(self._cluster.agenda.now)
