"""One machine among neighbours: what it is told, and what it says."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw

from motet.model import Filter, Hop, OpId, Value, encode_event
from motet.protocol.contract import CancelTimer, SetTimer, TimerKey
from motet.protocol.routing.machine import Routing
from motet.protocol.routing.messages import (
    Advertise,
    ClientHere,
    Complete,
    Echo,
    PubendHere,
    RoutingMessage,
    Subscribe,
)
from motet.protocol.routing.state import PROBES
from motet.protocol.session.machine import Sessions
from motet.protocol.session.messages import (
    AnswerRequest,
    BeginRequest,
    ConsentRequest,
    Decided,
    Done,
    EndRequest,
    Failed,
    Invited,
    InviteRequest,
    Over,
    RoutingRequest,
    StageRequest,
    SubscribeRequest,
    Tag,
    TxRequest,
)
from motet.protocol.session.state import Session
from motet.protocol.transactions.effects import TxEffects
from motet.protocol.transactions.machine import Transactions
from motet.protocol.transactions.messages import (
    Begun,
    Contribution,
    Ended,
    Letter,
    LetterBody,
    Submit,
    TxMessage,
)

SPACE = Filter.parse("x > 0")


def body(**attributes: Value) -> Raw:
    return Raw(encode_event(attributes, b""))


def op(client: str, number: int, broker: str = "A") -> OpId:
    return OpId(client, f"{broker}-1.1", number)


def part(
    client: str,
    *,
    begun: Iterable[Begun] = (),
    ended: Iterable[Ended] = (),
    events: int = 0,
    pubend: str = "",
    invited: Iterable[Raw] = (),
) -> Contribution:
    return Contribution(
        client, 1, tuple(begun), tuple(ended), events, pubend, tuple(invited), size_bytes=0
    )


class Office:
    """A with the neighbours B and C. D and E lie behind B. A is the root, unless said otherwise."""

    def __init__(self, root: str = "A") -> None:
        self.routing = Routing("A-1", ("B", "C"))
        self.state = self.routing.state
        self.routing.found("A.1")
        self.state.next_tick = 1
        for pubend, neighbour in (("B.1", "B"), ("C.1", "C"), ("D.1", "B"), ("E.1", "B")):
            self.routing.apply(PubendHere(pubend), Hop.broker(neighbour))
        self.sessions = Sessions("A", 1)
        self.machine = Transactions("A", root, self.state, self.sessions)
        self.said: list[tuple[str, TxMessage]] = []
        self.answers: list[tuple[OpId, Done | Failed]] = []
        self.told: list[tuple[str, Invited | Decided | Over]] = []
        self.timers: dict[TimerKey, float] = {}
        self.last = TxEffects()
        self.routed: list[RoutingMessage] = []

    # ── what happens ─────────────────────────────────────────────────────────────────────

    def meets(self) -> None:
        """All neighbours have told all that there is behind them."""
        for neighbour in ("B", "C"):
            self.routing.join(neighbour)
            self.routing.apply(Complete(True), Hop.broker(neighbour))
        self.probes_return()

    def probes_return(self) -> None:
        for wait in [each for each in self.state.waits.values() if each.what in PROBES]:
            self.routing.apply(Echo(wait.op), wait.requester)

    def arrives(self, client: str, broker: str = "A") -> None:
        source = Hop.client(client) if broker == "A" else Hop.broker("B")
        self.routing.apply(ClientHere(client, f"{broker}-1.1"), source)
        if broker == "A":
            self.sessions.restore(Session(client, "A-1.1"))

    def session(self, client: str) -> Session:
        session = self.sessions.get(client)
        assert session is not None
        return session

    def consents(self, client: str) -> None:
        self.asks(op(client, 1), ConsentRequest(1))

    def names(self, what: OpId, name: str) -> None:
        self.sessions.name(self.session(what.client), what.sequence, name)

    def subscribes(self, wish: OpId, filter: Filter = SPACE, tx: str = "") -> None:
        source = Hop.client(wish.client) if wish.epoch.startswith("A") else Hop.broker("B")
        self.routing.apply(Subscribe(wish, filter, tx=tx), source)

    def advertises(self, offer: OpId, filter: Filter = SPACE, tx: str = "") -> None:
        source = Hop.client(offer.client) if offer.epoch.startswith("A") else Hop.broker("B")
        self.routing.apply(Advertise(offer, filter, tx=tx), source)

    def hears(self, message: TxMessage, neighbour: str = "B") -> None:
        self.machine.receive(message, Hop.broker(neighbour))
        self.carry()

    def gets(self, letter: LetterBody, neighbour: str = "B") -> None:
        self.hears(Letter("A", letter), neighbour)

    def submits(self, tx: str, *parts: Contribution, key: str = "", isolated: bool = False) -> None:
        if isolated:  # it has begun before
            self.machine.state.bases.setdefault(tx, self.state.version)
        self.gets(Submit(tx, parts, key, isolated))

    def asks(self, who: OpId, request: TxRequest) -> None:
        self.machine.request(who, request)
        self.carry()

    def begins(self, who: OpId, isolated: bool = False, timeout_s: float = 10.0) -> str:
        self.asks(who, BeginRequest(who.sequence, isolated, timeout_s))
        return str(who)

    def stages(self, who: OpId, tx: str, event: Raw, order: str = "00000001") -> None:
        self.asks(who, StageRequest(who.sequence, Tag(tx, order), event))

    def invites(self, who: OpId, tx: str, event: Raw, order: str = "00000001") -> None:
        """Within what it has advertised long before."""
        offer = op(who.client, 90)
        if offer not in self.state.advertisements:
            self.advertises(offer)
        self.asks(who, InviteRequest(who.sequence, Tag(tx, order), event))

    def replies(self, who: OpId, tx: str, invitation: OpId, refusal: str = "") -> None:
        self.asks(who, AnswerRequest(who.sequence, tx, invitation, refusal))

    def ends(self, who: OpId, tx: str, *, commit: bool = True) -> None:
        self.asks(who, EndRequest(who.sequence, tx, commit))

    def adds(self, who: OpId, tx: str, filter: Filter = SPACE, order: str = "00000001") -> None:
        """A subscription in a transaction, effective at once."""
        request: RoutingRequest = SubscribeRequest(who.sequence, filter, tag=Tag(tx, order))
        assert self.machine.objection(who, request) is None
        assert request.tag is not None
        assert self.machine.note(who, request, request.tag)
        self.subscribes(who, filter, tx)
        self.machine.effective(who, failed=False)
        self.carry()

    def goes_on(self, seconds: float) -> None:
        self.machine.now += seconds

    def carry(self) -> None:
        self.last = self.machine.take_effects() or TxEffects()
        self.said += self.last.messages
        self.answers += self.last.answers
        self.told += self.last.tell
        for timer in self.last.timers:
            if isinstance(timer, SetTimer):
                self.timers[timer.key] = timer.at
            elif isinstance(timer, CancelTimer):
                self.timers.pop(timer.key, None)
        for what, _, name in self.last.made:
            self.names(what, name)
        for message, source in self.last.routes:
            self.routing.apply(message, source)
            self.routed.append(message)
        if self.last.doubts:
            self.routing.reassure()
        self.machine.validate()
        followed, refused = self.last.followed, self.last.refused
        for tx, client in followed:
            self.machine.followed(tx, client)
        for letter in refused:
            self.machine.refused(letter)
        if followed or refused:
            self.carry()

    # ── what came of it ──────────────────────────────────────────────────────────────────

    def to(self, neighbour: str) -> list[TxMessage]:
        """What it has said to a neighbour since it was last asked."""
        found = [message for name, message in self.said if name == neighbour]
        self.said = [each for each in self.said if each[0] != neighbour]
        return found

    def letters(self) -> list[tuple[str, LetterBody]]:
        found = [(m.broker, m.body) for _, m in self.said if isinstance(m, Letter)]
        self.said = [each for each in self.said if not isinstance(each[1], Letter)]
        return found

    def answer(self, who: OpId) -> Done | Failed | None:
        return next((reply for other, reply in self.answers if other == who), None)

    def error(self, who: OpId) -> tuple[str, str]:
        reply = self.answer(who)
        assert isinstance(reply, Failed), reply
        return reply.error, reply.text

    def outcome(self, tx: str) -> str:
        return self.machine._outcome(tx)
