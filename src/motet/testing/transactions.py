"""Random transactions of simulated applications: the twin of `motet.client.transaction`.

Applications begin transactions and end them, or forget to. They take part in those of other
clients, mostly consent to plans, sometimes refuse, and sometimes never answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from msgspec import Raw

from motet.audit.records import EventRecord, OperationRecord
from motet.client.plan import Plan, Planned
from motet.client.session.state import Concluded, Kind, ReceivedInvitation, Resolved
from motet.errors import MotetError
from motet.model import Filter, Value, decode_body, encode_event
from motet.protocol.session.messages import (
    AnswerRequest,
    BeginRequest,
    ConsentRequest,
    EndRequest,
    ExecuteRequest,
    Invited,
    InviteRequest,
    OutcomeRequest,
    StageRequest,
    Tag,
    TxRequest,
)
from motet.testing.workload import filters, inside, points

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient
    from motet.testing.cluster import Cluster


REFUSES = 0.05
SILENT = 0.04
"""The chance that an invited client never answers."""
PAUSE_S = 0.3
"""The longest pause of an application between two steps, if it pauses."""
THINKS = 0.15
WILLING = 0.95
"""The share of clients that let their broker do their part of plans."""
DEEPEST = 3
"""The longest chain of invitations that follow from invitations."""
STEPS = ("subscribe", "unsubscribe", "publish", "publish", "advertise", "unadvertise")
OWN_STEPS = (*STEPS, "invite")
OVER = ("Aborted", "TransactionOver", "ClosedError", "NotInvited")


@dataclass(slots=True)
class DealPart:
    """One client's part in one transaction, step by step."""

    tx: str
    order: str
    timeout_s: float
    left: list[str]
    done: Callable[[DealPart, str], None]
    """Called at the end, with the reason if the part has failed."""
    filter: Filter | None = None
    """The filter of the subscription that is handed over."""
    invited: Invited | None = None
    made: int = 0
    advertised: list[Filter] = field(default_factory=list)

    def tag(self) -> Tag:
        self.made += 1
        place = f"{self.made:08d}"
        return Tag(self.tx, f"{self.order}/{place}" if self.order else place)


class Dealer:
    def __init__(self, client: SimulatedClient, random: Random) -> None:
        self._client = client
        self._random = random
        self._answers: dict[int, Callable[[Resolved], None]] = {}
        self.before: dict[object, frozenset[tuple[str, str]]] = {}
        """By plan: pairs of places, of which the first must come before the second."""
        self.open: dict[str, None] = {}
        """Transactions that the client takes part in, as far as it knows."""

    def consent(self) -> None:
        if self._random.random() < WILLING:
            self._ask(ConsentRequest(0), "consent", _ignore)

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def _ask(self, request: TxRequest, kind: str, then: Callable[[Resolved], None]) -> None:
        try:
            handle = self._client.machine.parts.ask(request)
        except MotetError:
            return
        self._answers[handle] = then
        self._client._called(handle, kind)

    def resolved(self, answer: Resolved) -> None:
        then = self._answers.pop(answer.handle, None)
        if then is not None and self._client.alive and not self._client.over:
            then(answer)

    def outcome(self, tx: str) -> None:
        self._ask(OutcomeRequest(0, tx, 10.0), "outcome", _ignore)

    def execute(self, plan: Plan, timeout_s: float, key: str) -> None:
        parts = plan.parts()
        order = {step.index: place for place, step in enumerate(plan.in_order(), 1)}
        self.before[parts] = frozenset(
            (f"{order[first.index]:08d}", f"{order[step.index]:08d}")
            for step in plan.steps
            for first in plan.dependencies(step)
        )
        self._ask(ExecuteRequest(0, parts, timeout_s, key), "execute", _ignore)

    def begin(
        self,
        isolated: bool,
        timeout_s: float,
        key: str,
        steps: list[str],
        wanted: Filter | None,
        ending: str,
    ) -> None:
        """`ending` is commit, abort, or nothing."""

        def begun(answer: Resolved) -> None:
            if answer.failure is not None:
                return
            tx = answer.value
            self.open[tx] = None
            part = DealPart(tx, "", timeout_s, list(steps), end, wanted)
            self._go_on(part)

        def end(part: DealPart, problem: str) -> None:
            wanted = "abort" if problem and self._random.random() < 0.7 else ending
            if wanted:
                request = EndRequest(0, part.tx, wanted == "commit", problem, timeout_s)
                self._ask(request, wanted, _ignore)

        self._ask(BeginRequest(0, isolated, timeout_s, key), "begin", begun)

    # ── taking part ──────────────────────────────────────────────────────────────────────

    def called(self, news: ReceivedInvitation) -> None:
        invited, random = news.invited, self._random
        self.open[invited.tx] = None
        chance = random.random()
        if chance < SILENT:
            return
        if chance < SILENT + REFUSES:
            self._answer(invited, "it does not want to")
        else:
            depth = invited.order.count("/")
            kinds = OWN_STEPS if depth < DEEPEST else STEPS
            steps = [random.choice(kinds) for _ in range(random.choice((0, 1, 1, 2, 3)))]
            _, payload = decode_body(Raw(invited.body))
            wanted = filters()[int(payload)] if payload else None
            if wanted is not None:
                steps.insert(0, "take")
            part = DealPart(
                invited.tx, invited.order, invited.timeout_s, steps, self._done, wanted, invited
            )
            self._go_on(part)

    def _done(self, part: DealPart, problem: str) -> None:
        assert part.invited is not None
        self._answer(part.invited, problem)

    def _answer(self, invited: Invited, refusal: str) -> None:
        request = AnswerRequest(0, invited.tx, invited.op, refusal, invited.timeout_s)
        self._ask(request, "answer", _ignore)

    def concluded(self, news: Concluded) -> None:
        self.open.pop(news.tx, None)

    # ── one step after the other ─────────────────────────────────────────────────────────

    def _go_on(self, part: DealPart) -> None:
        if self._random.random() < THINKS:
            delay_s = self._random.random() * PAUSE_S
            self._client.cluster.agenda.after(delay_s, self._step, part)
        else:
            self._step(part)

    def _step(self, part: DealPart) -> None:
        if self._client.over or not self._client.alive or part.tx not in self.open:
            return
        while part.left:
            if self._do(part, part.left.pop(0)):
                return
        part.done(part, "")

    def _then(self, part: DealPart) -> Callable[[Resolved], None]:
        def answered(answer: Resolved) -> None:
            failure = answer.failure
            if failure is None:
                self._go_on(part)
            elif failure.error in OVER:
                self.open.pop(part.tx, None)
            elif self._random.random() < 0.5:
                part.done(part, f"{failure.error}: {failure.text}")
            else:
                self._go_on(part)

        return answered

    def _do(self, part: DealPart, kind: str) -> bool:
        """Do one operation; false if it is not possible."""
        random = self._random
        if kind == "take":
            assert part.filter is not None
            return self._put(part.tag(), "subscribe", part.filter, part)
        if kind in ("subscribe", "advertise"):
            wanted = random.choice(filters())
            if kind == "advertise":
                part.advertised.append(wanted)
            return self._put(part.tag(), kind, wanted, part)  # type: ignore[arg-type]
        if kind == "give":
            return part.filter is not None and self._take_out(part, "subscribe", part.filter)
        if kind in ("unsubscribe", "unadvertise"):
            return self._take_out(part, kind.removeprefix("un"))
        if kind == "read":
            assert part.filter is not None
            body = Raw(encode_event(dict(inside(part.filter)[0]), b""))
            self._ask(
                InviteRequest(0, part.tag(), body, part.timeout_s), "invite", self._then(part)
            )
            return True
        attributes = self._draw(part, kind)
        if kind == "publish":
            event = self.event(attributes)
            request = StageRequest(0, part.tag(), Raw(self.body(event)), part.timeout_s)
            self._ask(request, kind, self._then(part))
            return True
        number = b"" if part.filter is None else str(filters().index(part.filter)).encode()
        body = Raw(encode_event(attributes, number))
        self._ask(InviteRequest(0, part.tag(), body, part.timeout_s), kind, self._then(part))
        return True

    def _put(self, tag: Tag, kind: Kind, wanted: Filter, part: DealPart) -> bool:
        machine = self._client.machine
        if kind == "subscribe" and machine.total_order:
            return False  # not offered
        return self._request(part, tag, kind, wanted, None)

    def _request(
        self, part: DealPart, tag: Tag, kind: Kind, wanted: Filter | None, target: int | None
    ) -> bool:
        name = str(wanted) if wanted is not None else ""
        machine = self._client.machine
        durable = self._client.process is not None
        if durable and any((o.kind, o.name) == (kind, name) for o in machine.requests.in_force()):
            return False
        try:
            handle = machine.parts.request(
                tag, kind, wanted, target=target, timeout_s=part.timeout_s, name=name
            )
        except MotetError:
            return False
        self._answers[handle] = self._then(part)
        self._client._called(handle, kind)
        return True

    def _take_out(self, part: DealPart, kind: str, wanted: Filter | None = None) -> bool:
        standing = [
            each.handle
            for each in self._client.machine.requests.in_force()
            if each.kind == kind and (wanted is None or each.filter == wanted)
        ]
        if kind == "subscribe" and self._client.machine.total_order:
            return False
        if not standing:
            return False
        undo: Kind = "unsubscribe" if kind == "subscribe" else "unadvertise"
        return self._request(part, part.tag(), undo, None, self._random.choice(standing))

    def _draw(self, part: DealPart, kind: str) -> dict[str, Value]:
        """Mostly an event that this client has advertised."""
        own = [
            each.filter
            for each in self._client.machine.requests.in_force()
            if each.kind == "advertise" and each.filter is not None
        ]
        if kind == "publish":
            own += part.advertised
        if own and self._random.random() < 0.95:
            return dict(self._random.choice(inside(self._random.choice(own))))
        return dict(self._random.choice(points()))

    def event(self, attributes: dict[str, Value]) -> EventRecord:
        """An event that a transaction is to publish."""
        history, client = self._client.cluster.history, self._client
        number = len(history.events)
        event = EventRecord(
            number, client.name, client.instance, attributes, sure=True, staged=True
        )
        history.events.append(event)
        return event

    def body(self, event: EventRecord) -> bytes:
        body = encode_event(event.attributes, str(event.number).encode())
        self._client.cluster.bodies[body] = event
        return body


def _ignore(answer: Resolved) -> None:
    """The recorder records the answer."""


TIMEOUTS_S = (10.0, 10.0, 3.0, 1.0, 0.2)
KEYED = 0.2
KEYS = ("this", "that")
"""Few keys, so that most are used more than once."""
HAND_OVER = 0.5
PARTIAL = 0.3
"""The share of plans whose steps are only partially ordered."""
KNOWN = 8
"""Clients ask for the outcomes of at most this many recent transactions."""


class Dealing:
    """Uses a random generator of its own, so that a seed's other draws do not depend on it."""

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
        """Everything is at rest: ask for the outcome of each transaction."""
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
        """Two transactions at once, each of which reads what the other writes: one must fail."""
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

    def _live(self, who: SimulatedClient) -> OperationRecord | None:
        """A random subscription of the client that can be handed over."""
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
        """Hand over a subscription of one client to another one."""
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
                return  # refused as ambiguous: the plan adds one of the same name
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
