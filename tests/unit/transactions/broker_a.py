"""The transactions of one broker among neighbours: what it is told, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Raw

from motet.model import Filter, Hop, OpId, Value, encode_event
from motet.protocol.changes import Changes, Sent
from motet.protocol.contract import CancelTimer, Change, SetTimer, TimerKey
from motet.protocol.link.messages import ControlMessage
from motet.protocol.room import Objection
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
from motet.protocol.session.durable import RequestHandler
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
    Request,
    RoutingRequest,
    StageRequest,
    SubscribeRequest,
    Tag,
    TxRequest,
)
from motet.protocol.session.state import Session
from motet.protocol.transactions.durable import DurableTransactions
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
from motet.protocol.transactions.state import Marks

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


class RecordedRouting(Routing):
    """Remembers the messages that take effect."""

    def __init__(self, life: str, neighbours: Sequence[str], marks: Marks) -> None:
        super().__init__(life, neighbours, marks)
        self.applied: list[RoutingMessage] = []

    def apply(self, message: RoutingMessage, source: Hop) -> Changes:
        self.applied.append(message)
        return super().apply(message, source)


class BrokerA:
    """The rooms of transactions, routing and sessions at A, and what the first asks of the rest of
    the broker. A has the neighbours B and C. D and E lie behind B. A is the root, unless said
    otherwise."""

    def __init__(self, root: str = "A") -> None:
        self.now = 0.0
        self.at_end: list[Callable[[], None]] = []
        self.marks = Marks()
        self.routing = RecordedRouting("A-1", ("B", "C"), self.marks)
        self.state = self.routing.state
        self.routing.found("A.1")
        self.routing.starts.next_tick = 1
        for pubend, neighbour in (("B.1", "B"), ("C.1", "C"), ("D.1", "B"), ("E.1", "B")):
            self.routing.apply(PubendHere(pubend), Hop.broker(neighbour))
        self.sessions = Sessions("A", 1)
        self.machine = Transactions("A", root, self.routing, self.marks, self.sessions, clock=self)
        self.requests: dict[type, RequestHandler] = {}
        self.room = DurableTransactions(self, self.machine, self.routing, self.sessions, self)
        self.said: list[tuple[str, TxMessage]] = []
        self.answers: list[tuple[OpId, Done | Failed]] = []
        self.told: list[tuple[str, Invited | Decided | Over]] = []
        self.timers: dict[TimerKey, float] = {}
        self.changes: list[Change] = []
        """Of the last step."""
        self.released: list[Request] = []
        """Requests that took effect in the last step, after they had to wait."""

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
        self.carry_out()

    def gets(self, letter: LetterBody, neighbour: str = "B") -> None:
        self.hears(Letter("A", letter), neighbour)

    def submits(self, tx: str, *parts: Contribution, key: str = "", isolated: bool = False) -> None:
        if isolated:  # it has begun before
            self.machine.versions.state.bases.setdefault(tx, self.marks.version)
        self.gets(Submit(tx, parts, key, isolated))

    def asks(self, who: OpId, request: TxRequest) -> None:
        self.machine.request(who, request)
        self.carry_out()

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
        assert self.admits(who, request) is True
        assert request.tag is not None
        assert self.machine.note(who, request, request.tag)
        self.subscribes(who, filter, tx)
        self.machine.effective(who, failed=False)
        self.carry_out()

    def admits(self, who: OpId, request: RoutingRequest) -> Objection | bool:
        session = self.sessions.get(who.client) or Session(who.client, who.epoch)
        return self.machine.admit(who, request, session)

    def goes_on(self, seconds: float) -> None:
        self.now += seconds

    def carry_out(self) -> None:
        self.changes, self.released = [], []
        self.room.settle()
        self.machine.validate()

    # ── what the room asks of the broker around it ───────────────────────────────────────

    def emit(self, change: Change) -> None:
        self.changes.append(change)
        match change:
            case Sent(neighbour, message) if isinstance(message, TxMessage):
                self.said.append((neighbour, message))
            case SetTimer(key, at):
                self.timers[key] = at
            case CancelTimer(key):
                self.timers.pop(key, None)

    def carry(self, changes: Changes) -> None:
        for change in changes:
            self.emit(change)

    def settle(self) -> None:
        self.room.settle()

    def route(self, message: ControlMessage, source: Hop) -> None:
        assert not isinstance(message, TxMessage)
        self.carry(self.routing.apply(self.machine.normalised(message), source))

    def answer(self, op: OpId, reply: Done | Failed) -> None:
        self.answers.append((op, reply))

    def tell(self, client: str, told: Invited | Decided | Over) -> None:
        self.told.append((client, told))

    def name_made(self, op: OpId, kind: str, name: str) -> None:
        del kind
        self.names(op, name)

    def obey(self, op: OpId, request: Request) -> None:
        self.released.append(request)
        if isinstance(request, TxRequest):
            self.machine.request(op, request)

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

    def answer_to(self, who: OpId) -> Done | Failed | None:
        return next((reply for other, reply in self.answers if other == who), None)

    def error(self, who: OpId) -> tuple[str, str]:
        reply = self.answer_to(who)
        assert isinstance(reply, Failed), reply
        return reply.error, reply.text

    def outcome(self, tx: str) -> str:
        return self.machine.decider.outcome(tx)
