"""What happened, as clients saw it, and where something was broken at the time.

The cluster writes it, the checkers read it. It knows nothing of protocols: only who asked for
what, who was answered what, which events went in and which came out, each with its virtual time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from motet.model import Filter, Hop, OpId, Value
from motet.testing.topology import Edge, Tree, edge_of

if TYPE_CHECKING:
    from motet.testing.deals import Asking, Deal, Deed

ADDITIONS = ("advertise", "subscribe")
DONE = "Done"
ENDLESS = 1 << 60
IN_TRANSACTION = "InTransaction"
"""The answer of a removal of what is part of an open transaction: it stays."""
UNHEARD = "unheard"
"""The answer of an operation that has failed when nobody was there to hear it."""


@dataclass(slots=True, eq=False)
class Operation:
    """One request of one session. A request renewed in a new session is another operation."""

    session: Session
    sequence: int
    handle: int
    kind: str
    filter: Filter | None
    target: Operation | None
    wait: bool
    timeout_s: float
    position: int
    """Among all that its session sent: the link to the broker keeps this order."""
    requested_at: float
    answered_at: float = inf
    answer: str = ""
    """"Done", or the name of the error."""
    missing: tuple[str, ...] = ()
    effective_at: float = inf
    """When its broker said that it is effective across the overlay."""
    ended_at: float = inf
    """When its end began: taken back, or its session ended, or could have."""
    ended_position: int = ENDLESS
    gone: bool = False
    """Its removal, or its failure, has been answered."""
    since: dict[str, int] = field(default_factory=dict)
    """How far a subscription reaches into the past, by pubend."""
    deal: Deal | None = None
    """The transaction that it is part of."""
    doubted_position: int = ENDLESS
    """From here on a transaction may have ended it at any moment."""
    doubts: frozenset[int] = frozenset()
    """Requests that take it back in transactions which may yet commit."""
    stayed: bool = False
    """Its client took it back, and that was refused."""
    dealt: bool = False
    """A transaction has taken it back, or never added it."""
    finished_at: float = inf
    """When its client was told that it has got all that it was owed, after a transaction has ended
    it."""

    @property
    def id(self) -> OpId:
        return OpId(self.session.client, self.session.epoch, self.sequence)

    def answered(self, answer: str, at: float, missing: tuple[str, ...] = ()) -> str:
        """An answer stands on the wire: "Done", or the name of an error. The first one counts;
        what is odd about a later one, if it is another."""
        if self.answer not in ("", UNHEARD):
            changed = self.answer != answer
            return f"{self} was answered {self.answer}, then {answer}" if changed else ""
        self.answer, self.answered_at, self.missing = answer, at, missing
        if self.target is not None:
            if answer == IN_TRANSACTION:
                self.target.stays()
            elif self.deal is None:
                self.target.gone = True
        elif answer != DONE:
            self.gone = True
            self.ended_at = min(self.ended_at, self.requested_at)
        return ""

    @property
    def is_being_removed(self) -> bool:
        """It was taken back outside of transactions, and that has not failed."""
        return self.ended_position < ENDLESS

    def stays(self) -> None:
        """It was not taken back after all."""
        self.stayed = True
        self.ended_position = ENDLESS
        if not (self.doubts or self.gone) and self.session.ended_at == inf:
            self.ended_at = inf

    def __str__(self) -> str:
        what = f"({self.filter})" if self.filter is not None else ""
        return f"{self.kind} {self.id} {what} at {self.session.broker}".replace("  ", " ")


@dataclass(slots=True, eq=False)
class Session:
    """One epoch, as its client knew it. `instance` tells two clients with one id apart."""

    client: str
    instance: int
    epoch: str
    broker: str
    opened_at: float
    ended_at: float = inf
    sent: int = 0
    """How many things the client has sent in it: the next position."""
    operations: dict[int, Operation] = field(default_factory=dict)
    asks: dict[int, Asking] = field(default_factory=dict)
    """Requests about transactions, by number."""
    numbered: dict[int, Event] = field(default_factory=dict)
    """Of a durable session: its publications, by number."""
    total_order: bool = False
    forgotten: list[Operation] = field(default_factory=list)
    """Of a durable session: asked for by a process that is gone, and lost with its broker before
    it was written down. Events that were published under it may have been."""

    def end(self, at: float) -> None:
        """It ends, or could have, and with it all that it has in force."""
        if self.ended_at == inf:
            self.ended_at = at
            for operation in self.operations.values():
                operation.ended_at = min(operation.ended_at, at)


class Opening(NamedTuple):
    """A broker opened a session, whether its client ever heard of it or not."""

    client: str
    instance: int
    epoch: str
    broker: str
    at: float
    resume: str | None
    """The epoch that the client came back with; none if it was new."""
    present: tuple[str, ...]
    """Epochs in which others with the same id were connected just then, and not outdone yet."""
    adopted: bool = False
    """The session was a durable one, that another process has left or was thrown out of."""


class Fencing(NamedTuple):
    """A client was told that another one with its id has taken over."""

    client: str
    instance: int
    epoch: str | None
    at: float


@dataclass(slots=True, eq=False)
class Call:
    """One request as the application made it, with every answer it got (one, we hope)."""

    client: str
    instance: int
    handle: int
    kind: str
    at: float
    answers: list[tuple[float, str]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Event:
    """One publication. `fate` is "accepted", "refused" or "unknown" once it is settled."""

    number: int
    client: str
    instance: int
    attributes: dict[str, Value]
    session: Session | None = None
    position: int = -1
    sent_at: float = inf
    fate: str = ""
    """Also "void": a later process of its client was told that it was never published."""
    sure: bool = False
    """To arrive exactly once."""
    settled_at: float = inf
    """When its publisher heard of its fate."""
    inherited: bool = False
    """It was a later process of its publisher that did."""
    pubend: str = ""
    tick: int = 0
    """Where it is in which log, if anybody knows."""
    audience: frozenset[OpId] = frozenset()
    """Subscriptions that had started there when it was written, and match it."""
    last_position: int = -1
    """Where it was sent for the last time, after its broker had lost it."""
    deal: Deal | None = None
    """The transaction that publishes it, if it commits."""
    staged: bool = False
    """It is to be published by a transaction."""

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.attributes.items())
        return f"event {self.number} {{{shown}}} of {self.client}"


class Delivery(NamedTuple):
    """An event handed to the application, for one of its subscriptions."""

    at: float
    instance: int
    handle: int
    operation: Operation | None
    event: Event | None
    publisher: str
    pubend: str = ""
    tick: int = 0
    """Of a sure event: which place in which stream it came from."""
    session: Session | None = None


class Loss(NamedTuple):
    """A client was told that a range of ticks is lost."""

    instance: int
    pubend: str
    first: int
    last: int
    withdrawn: bool = False
    """The past that it wanted cannot be read any more: nobody advertises there what it wants."""


class Cut(NamedTuple):
    """A pubend has cut for a transaction, whose events there end at tick `last`."""

    pubend: str
    tick: int
    last: int
    tx: str
    number: int
    at: float = 0.0
    switches: tuple[tuple[OpId, int, bool], ...] = ()
    """Subscriptions, above which tick each begins or ends, and whether it ends."""


class Spans:
    """Stretches of time at one place, in order, none overlapping."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._at_least = 0.0
        self.open = False

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """Each one's beginning and end."""
        return iter(zip(self._starts, self._ends, strict=True))

    def begin(self, at: float) -> None:
        """A stretch whose end nobody knows yet; joins the last one if that is not over."""
        self.open = True
        if self._ends and at <= self._ends[-1]:
            self._ends[-1] = inf
        else:
            self._starts.append(at)
            self._ends.append(inf)

    def end(self, at: float) -> None:
        if self.open:
            self.open = False
            self._ends[-1] = max(at, self._at_least)

    def touch(self, since: float, until: float) -> None:
        """A stretch whose end is known already."""
        self._at_least = max(self._at_least, until)
        if self._ends and since <= self._ends[-1]:
            self._ends[-1] = max(self._ends[-1], until)
        else:
            self._starts.append(since)
            self._ends.append(until)

    def meets(self, since: float, until: float) -> bool:
        """Whether any stretch has a moment in common with this one."""
        first = bisect_left(self._ends, since)
        return first < len(self._starts) and self._starts[first] <= until


class Places(dict[str | Edge | int, Spans]):
    """Spans by broker name, by edge, or by client instance."""

    def __missing__(self, place: str | Edge | int) -> Spans:
        spans = self[place] = Spans()
        return spans


@dataclass(slots=True, eq=False)
class History:
    """One run."""

    tree: Tree
    covering: bool
    hop_s: float
    """The longest one undisturbed hop takes, waiting for the journal included."""
    sessions: list[Session] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    fencings: list[Fencing] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    starts: dict[tuple[OpId, str], int] = field(default_factory=dict)
    """By subscription and pubend: the tick above which it is owed everything."""
    first_starts: dict[tuple[OpId, str], int] = field(default_factory=dict)
    """The first of them: an advertisement that goes takes starts with it, and another one may
    bring others."""
    lost_upto: dict[str, int] = field(default_factory=dict)
    """By pubend: up to which tick its log has let go what somebody was still owed."""
    trimmed_upto: dict[str, int] = field(default_factory=dict)
    """By pubend: up to which tick its log has let go of anything."""
    withdrawn_upto: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """By client, epoch and pubend: up to which tick the past that a subscription wants, or wanted
    until it was taken back, cannot be read any more, as the client's broker knows."""
    disturbed: Places = field(default_factory=Places)
    """Where frames could be lost or late, or nobody was there."""
    amnesia: Places = field(default_factory=Places)
    """When a broker lost its state, or the two ends of an edge what they knew of each other."""
    jumps: Places = field(default_factory=Places)
    """When a broker's clock jumped ahead."""
    oddities: list[tuple[str, str]] = field(default_factory=list)
    """What the recorder itself found wrong: guarantee and detail."""
    settled_at: float = inf
    """When everything was quiet: from here on all that is in force is effective."""
    living: list[Session] = field(default_factory=list)
    """Sessions that are open in the end."""
    present: set[int] = field(default_factory=set)
    """Instances of clients that are there in the end."""
    durable: dict[int, bool] = field(default_factory=dict)
    """Instances of durable clients: whether their application writes its own cursors down."""
    effects: list[Delivery] = field(default_factory=list)
    """What applications of durable clients are done with."""
    deals: dict[str, Deal] = field(default_factory=dict)
    """Transactions, by name."""
    planned: dict[tuple[str, str, str], list[Deed]] = field(default_factory=dict)
    """Removals by plans: by client, kind, and what the client calls it."""
    ends: dict[tuple[OpId, str], int] = field(default_factory=dict)
    """By subscription and pubend: the last tick that it is owed."""
    root: str = ""
    """The broker that decides transactions."""
    departed: set[int] = field(default_factory=set)
    """Instances whose process was killed: nobody there to hear an answer."""

    def odd(self, guarantee: str, detail: str) -> None:
        self.oddities.append((guarantee, detail))

    def forgot(self, path: Sequence[str], since: float, until: float = inf) -> bool:
        """Whether a broker or a link on a path has forgotten what it knew."""
        places: list[str | Edge] = [*path, *(edge_of(*ends) for ends in pairwise(path))]
        return any(self.amnesia[place].meets(since, until) for place in places)

    def source_at(self, broker: str, session: Session) -> Hop:
        """Where a broker hears of a session from: a neighbour, or the client itself."""
        path = self.tree.path(broker, session.broker)
        return Hop.broker(path[1]) if len(path) > 1 else Hop.client(session.client)

    def taken(self) -> list[Delivery]:
        """What applications have got. Durable ones get again what they were not done with, so for
        them only that counts."""
        ordinary = [each for each in self.deliveries if each.instance not in self.durable]
        return ordinary + self.effects

    def operations(self, kind: str) -> list[Operation]:
        return [
            operation
            for session in self.sessions
            for operation in session.operations.values()
            if operation.kind == kind
        ]

    def in_force(self) -> list[Operation]:
        """What the living sessions have asked for and neither lost nor taken back."""
        return [
            operation
            for session in self.living
            for operation in session.operations.values()
            if operation.kind in ADDITIONS and not operation.gone
        ]
