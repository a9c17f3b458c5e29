"""What an application does in transactions: the twin of `motet.client.transaction`.

It begins some and ends them, or forgets to; it takes part in those of others, mostly consents to
plans, refuses now and then, and sometimes never answers. What it is to do, `dealing` has drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from msgspec import Raw

from motet.client.happenings import Concluded, Resolved, Summoned
from motet.client.operation import Kind
from motet.client.plan import Plan
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
from motet.testing.history import Event
from motet.testing.workload import filters, inside, points

if TYPE_CHECKING:
    from motet.testing.clients import SimulatedClient

REFUSES = 0.05
SILENT = 0.04
"""How often who is asked to take part never answers."""
PAUSE_S = 0.3
"""How long an application thinks at most between two steps, if it does."""
THINKS = 0.15
WILLING = 0.95
"""How many let their broker do their part of plans."""
DEEPEST = 3
"""Invitations that follow from invitations, and so on."""
STEPS = ("subscribe", "unsubscribe", "publish", "publish", "advertise", "unadvertise")
OWN_STEPS = (*STEPS, "invite")
OVER = ("Aborted", "TransactionOver", "ClosedError", "NotInvited")


@dataclass(slots=True)
class Part:
    """What this client does in one transaction, step by step."""

    tx: str
    order: str
    timeout_s: float
    left: list[str]
    done: Callable[[Part, str], None]
    """Summoned at the end, with the reason if it has failed."""
    filter: Filter | None = None
    """Whatever is handed over."""
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
        """By plan: which places must come before which."""
        self.open: dict[str, None] = {}
        """Transactions that it takes part in, as far as it knows."""

    def consent(self) -> None:
        if self._random.random() < WILLING:
            self._ask(ConsentRequest(0), "consent", _ignore)

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def _ask(self, request: TxRequest, kind: str, then: Callable[[Resolved], None]) -> None:
        try:
            handle = self._client.machine.ask(request)
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
            part = Part(tx, "", timeout_s, list(steps), end, wanted)
            self._go_on(part)

        def end(part: Part, problem: str) -> None:
            wanted = "abort" if problem and self._random.random() < 0.7 else ending
            if wanted:
                request = EndRequest(0, part.tx, wanted == "commit", problem, timeout_s)
                self._ask(request, wanted, _ignore)

        self._ask(BeginRequest(0, isolated, timeout_s, key), "begin", begun)

    # ── taking part ──────────────────────────────────────────────────────────────────────

    def called(self, news: Summoned) -> None:
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
            part = Part(
                invited.tx, invited.order, invited.timeout_s, steps, self._done, wanted, invited
            )
            self._go_on(part)

    def _done(self, part: Part, problem: str) -> None:
        assert part.invited is not None
        self._answer(part.invited, problem)

    def _answer(self, invited: Invited, refusal: str) -> None:
        request = AnswerRequest(0, invited.tx, invited.op, refusal, invited.timeout_s)
        self._ask(request, "answer", _ignore)

    def concluded(self, news: Concluded) -> None:
        self.open.pop(news.tx, None)

    # ── one step after the other ─────────────────────────────────────────────────────────

    def _go_on(self, part: Part) -> None:
        if self._random.random() < THINKS:
            delay_s = self._random.random() * PAUSE_S
            self._client.cluster.agenda.after(delay_s, self._step, part)
        else:
            self._step(part)

    def _step(self, part: Part) -> None:
        if self._client.over or not self._client.alive or part.tx not in self.open:
            return
        while part.left:
            if self._do(part, part.left.pop(0)):
                return
        part.done(part, "")

    def _then(self, part: Part) -> Callable[[Resolved], None]:
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

    def _do(self, part: Part, kind: str) -> bool:
        """One operation; false if there is nothing to do it with."""
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

    def _put(self, tag: Tag, kind: Kind, wanted: Filter, part: Part) -> bool:
        machine = self._client.machine
        if kind == "subscribe" and machine.total_order:
            return False  # not offered
        return self._request(part, tag, kind, wanted, None)

    def _request(
        self, part: Part, tag: Tag, kind: Kind, wanted: Filter | None, target: int | None
    ) -> bool:
        name = str(wanted) if wanted is not None else ""
        machine = self._client.machine
        durable = self._client.process is not None
        if durable and any((o.kind, o.name) == (kind, name) for o in machine.standing()):
            return False
        try:
            handle = machine.request_in(
                tag, kind, wanted, target=target, timeout_s=part.timeout_s, name=name
            )
        except MotetError:
            return False
        self._answers[handle] = self._then(part)
        self._client._called(handle, kind)
        return True

    def _take_out(self, part: Part, kind: str, wanted: Filter | None = None) -> bool:
        standing = [
            each.handle
            for each in self._client.machine.standing()
            if each.kind == kind and (wanted is None or each.filter == wanted)
        ]
        if kind == "subscribe" and self._client.machine.total_order:
            return False
        if not standing:
            return False
        undo: Kind = "unsubscribe" if kind == "subscribe" else "unadvertise"
        return self._request(part, part.tag(), undo, None, self._random.choice(standing))

    def _draw(self, part: Part, kind: str) -> dict[str, Value]:
        """Mostly inside what this client has advertised."""
        own = [
            each.filter
            for each in self._client.machine.standing()
            if each.kind == "advertise" and each.filter is not None
        ]
        if kind == "publish":
            own += part.advertised
        if own and self._random.random() < 0.95:
            return dict(self._random.choice(inside(self._random.choice(own))))
        return dict(self._random.choice(points()))

    def event(self, attributes: dict[str, Value]) -> Event:
        """One that a transaction is to publish."""
        history, client = self._client.cluster.history, self._client
        number = len(history.events)
        event = Event(number, client.name, client.instance, attributes, sure=True, staged=True)
        history.events.append(event)
        return event

    def body(self, event: Event) -> bytes:
        body = encode_event(event.attributes, str(event.number).encode())
        self._client.cluster.bodies[body] = event
        return body


def _ignore(answer: Resolved) -> None:
    """Whatever it is, the recorder has it."""
