"""Who begins which transaction, and when: plans, dynamic ones, hand-overs, questions afterwards."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from motet.client.plan import Plan, Planned
from motet.model import Filter
from motet.testing.dealers import OWN_STEPS, STEPS
from motet.testing.history import Operation
from motet.testing.workload import filters, inside, points

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient
    from motet.testing.cluster import Cluster

TIMEOUTS_S = (10.0, 10.0, 3.0, 1.0, 0.2)
KEYED = 0.2
KEYS = ("this", "that")
"""Few names, so that most are used more than once."""
HAND_OVER = 0.5
PARTIAL = 0.3
"""The share of plans whose steps are not in one row."""
KNOWN = 8
"""Questions are about one of the last so many transactions."""


class Dealing:
    """Draws from a source of its own: what else a seed draws does not depend on it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(f"deals {seed}")

    def begin(self) -> None:
        if self._cluster.plan.deal_s:
            self._next()

    def _next(self) -> None:
        delay_s = self._random.expovariate(1.0 / self._cluster.plan.deal_s)
        self._cluster.agenda.after(delay_s, self._act)

    def _act(self) -> None:
        if not self._cluster.acting:
            return
        self._next()
        able = [client for client in self._cluster.able() if client.dealer is not None]
        if not able:
            return
        who = self._random.choice(able)
        kinds = ("execute", "begin", "ask", "skew")
        what = self._random.choices(kinds, (5.0, 5.0, 1.5, 0.7))[0]
        if what == "execute":
            self._execute(who, able)
        elif what == "begin":
            self._begin(who)
        elif what == "skew":
            self._skew(who, able)
        else:
            self._ask(who)

    # ── afterwards ───────────────────────────────────────────────────────────────────────

    def _ask(self, who: SimulatedClient) -> None:
        known = list(self._cluster.history.deals)[-KNOWN:]
        if known and who.dealer is not None:
            who.dealer.outcome(self._random.choice(known))

    def ask_all(self) -> None:
        """Everything is at rest: what became of each?"""
        living = [c for c in self._cluster.clients if c.open and c.dealer is not None]
        for number, tx in enumerate(self._cluster.history.deals):
            if living:
                dealer = living[number % len(living)].dealer
                assert dealer is not None
                dealer.outcome(tx)

    # ── dynamic ones ─────────────────────────────────────────────────────────────────────

    def _begin(self, who: SimulatedClient) -> None:
        random = self._random
        assert who.dealer is not None
        steps = [random.choice(OWN_STEPS) for _ in range(random.choice((0, 1, 2, 2, 3, 4)))]
        wanted: Filter | None = None
        if random.random() < HAND_OVER:
            ours = self._live(who)
            if ours is not None and ours.filter in filters():
                wanted = ours.filter
                steps = [*steps[:2], *random.sample(("invite", "give"), 2), *steps[2:]]
        ending = random.choices(("commit", "abort", ""), (8.0, 1.0, 0.7))[0]
        isolated = random.random() < 0.6
        who.dealer.begin(isolated, self._timeout_s(), self._key(), steps, wanted, ending)

    def _skew(self, who: SimulatedClient, able: list[SimulatedClient]) -> None:
        """Two at once, each of which reads what the other changes: one of them must not commit."""
        common = {
            (other, space): None
            for other in able
            for one in who.standing("advertise")
            for own in other.standing("advertise")
            if (space := who.operations[one].filter) == other.operations[own].filter
            and other.name != who.name
        }
        if not common:
            return
        other, space = self._random.choice(list(common))
        for each in (who, other):
            assert each.dealer is not None
            each.dealer.begin(True, 10.0, "", ["read", "take"], space, "commit")

    def _timeout_s(self) -> float:
        return self._random.choice(TIMEOUTS_S)

    def _key(self) -> str:
        return self._random.choice(KEYS) if self._random.random() < KEYED else ""

    def _live(self, who: SimulatedClient) -> Operation | None:
        """A subscription of a client that could be handed over."""
        standing = who.standing("subscribe")
        if not standing or who.machine.total_order:
            return None
        return who.operations[self._random.choice(standing)]

    # ── plans ────────────────────────────────────────────────────────────────────────────

    def _execute(self, who: SimulatedClient, able: list[SimulatedClient]) -> None:
        random, plan = self._random, Plan()
        by_name = {client.name: client for client in able if not client.over}
        names = random.sample(list(by_name), min(len(by_name), random.randint(2, 4)))
        cast = [by_name[name] for name in names]
        loose = random.random() < PARTIAL
        if random.random() < HAND_OVER:
            self._hand_over(plan, cast)
        for _ in range(random.randint(0, 4) if plan.steps else random.randint(1, 6)):
            self._step(plan, random.choice(cast), loose)
        if plan.steps and who.dealer is not None:
            who.dealer.execute(plan, self._timeout_s(), self._key())

    def _hand_over(self, plan: Plan, cast: list[SimulatedClient]) -> None:
        """Of what somebody subscribes to, somebody else is to get the rest."""
        for giver in cast:
            live = self._live(giver)
            takers = [c for c in cast if c is not giver and not c.machine.total_order]
            if live is None or live.filter is None or not takers:
                continue
            taker = self._random.choice(takers)
            steps = [self._give, self._take]
            self._random.shuffle(steps)
            for at, step in enumerate(steps):
                step(plan, giver, taker, live.filter)
                if not at and self._random.random() < 0.5:
                    self._publish(plan, self._random.choice(cast), None)
            return

    def _give(
        self, plan: Plan, giver: SimulatedClient, taker: SimulatedClient, wanted: Filter
    ) -> None:
        del taker
        plan.unsubscribe(giver.name, str(wanted))

    def _take(
        self, plan: Plan, giver: SimulatedClient, taker: SimulatedClient, wanted: Filter
    ) -> None:
        del giver
        plan.subscribe(taker.name, wanted)

    def _step(self, plan: Plan, who: SimulatedClient, loose: bool) -> None:
        random = self._random
        after: list[Planned] | None = None
        if loose:
            after = random.sample(plan.steps, random.randint(0, min(2, len(plan.steps))))
        kind = random.choice(STEPS)
        if kind == "publish":
            self._publish(plan, who, after)
        elif kind in ("advertise", "subscribe"):
            wanted = random.choice(filters())
            twice = any(
                (s.client, s.kind, s.filter) == (who.name, kind, wanted) for s in plan.steps
            )
            if kind == "advertise" and not twice:
                plan.advertise(who.name, wanted, after=after)
            elif not twice and not who.machine.total_order:
                plan.subscribe(who.name, wanted, after=after)
        elif kind in ("unsubscribe", "unadvertise"):
            standing = who.standing(kind.removeprefix("un"))
            if not standing or (kind == "unsubscribe" and who.machine.total_order):
                return
            name = str(who.operations[random.choice(standing)].filter)
            adds = kind.removeprefix("un")
            if any((s.client, s.kind, s.name) == (who.name, adds, name) for s in plan.steps):
                return  # refused: what the plan adds itself, or the other one?
            undo = plan.unsubscribe if kind == "unsubscribe" else plan.unadvertise
            undo(who.name, name, after=after)

    def _publish(self, plan: Plan, who: SimulatedClient, after: list[Planned] | None) -> None:
        random = self._random
        own = [who.operations[handle].filter for handle in who.standing("advertise")]
        own += [s.filter for s in plan.steps if (s.client, s.kind) == (who.name, "advertise")]
        space = random.choice(own) if own else None
        if space is None and random.random() < 0.9:
            return
        attributes = dict(random.choice(points() if space is None else inside(space)))
        dealer = who.dealer
        assert dealer is not None
        event = dealer.event(attributes)
        payload = str(event.number).encode()
        step = plan.publish(who.name, attributes, payload, after=after)
        self._cluster.bodies[step.body] = event
