"""The cost of a transaction: its phases, their messages and hops, and the expected time.

A phase is a part of the critical path: it begins when the one before it has ended everywhere.
Its hops are those of its longest path, there and back; its messages are all that cross a link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

REMEMBERED = 8
"""Transactions of this client with which a new one is compared."""
ALIKE = 2
"""This many similar transactions make a habit."""
FLOODS = ("advertise", "subscribe")


@dataclass
class Made:
    """One completed operation of a transaction."""

    kind: str
    what: str = ""
    seconds: float = 0.0
    reached: int = 0


class Sketch(NamedTuple):
    """The overlay, as one broker knows it."""

    broker: str
    root: str
    links: tuple[tuple[str, str], ...]
    homes: Mapping[str, str | None]
    round_trips_s: tuple[float, ...]
    """Of control messages to its neighbours and back, including their writes to disk."""

    @staticmethod
    def of(status: Mapping[str, Any]) -> Sketch:
        """From the status of a broker."""
        links = tuple((str(one), str(other)) for one, other in status.get("tree", ()))
        times = (link.get("round_trip_s", 0.0) for link in status["links"].values())
        return Sketch(
            status["broker"],
            status.get("transactions", {}).get("root", ""),
            links,
            status.get("homes", {}),
            tuple(each for each in times if each > 0),
        )

    @property
    def brokers(self) -> list[str]:
        return sorted({self.broker, *chain.from_iterable(self.links)})

    def distances(self, broker: str) -> dict[str, int]:
        """Hops from a broker to all reachable ones."""
        beside: dict[str, list[str]] = {}
        for one, other in self.links:
            beside.setdefault(one, []).append(other)
            beside.setdefault(other, []).append(one)
        found = {broker: 0}
        left = deque([broker])
        while left:
            here = left.popleft()
            for each in beside.get(here, ()):
                if each not in found:
                    found[each] = found[here] + 1
                    left.append(each)
        return found

    def distance(self, one: str, other: str) -> int:
        return self.distances(one).get(other, 0)

    def depth(self, broker: str) -> int:
        """Hops to the farthest broker."""
        return max(self.distances(broker).values())


@dataclass(frozen=True)
class CostPhase:
    name: str
    what: str
    messages: int | None = None
    """Messages that cross links; None if the overlay was not asked."""
    hops: int | None = None
    """On the longest path, there and back."""
    at_most: bool = False
    """The numbers are upper bounds: they depend on the advertisers and subscribers."""
    took_s: float | None = None
    """How long it took, if it is over."""


@dataclass(frozen=True)
class Explanation:
    """`print` it, or use `as_dict()`."""

    kind: str
    summary: str
    phases: tuple[CostPhase, ...]
    hints: tuple[str, ...] = ()
    hop_s: tuple[float, float] | None = None
    """The time of one hop, at least and at most, as measured on our broker's links."""

    @property
    def messages(self) -> int | None:
        return _sum(each.messages for each in self.phases)

    @property
    def hops(self) -> int | None:
        return _sum(each.hops for each in self.phases)

    @property
    def expected_s(self) -> tuple[float, float] | None:
        """At least and at most; None if nothing was measured."""
        hops, hop_s = self.hops, self.hop_s
        return None if hops is None or hop_s is None else (hops * hop_s[0], hops * hop_s[1])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return {
            "kind": self.kind,
            "summary": self.summary,
            "phases": [asdict(each) for each in self.phases],
            "messages": self.messages,
            "hops": self.hops,
            "expected_s": None if self.expected_s is None else list(self.expected_s),
            "hints": list(self.hints),
        }

    def __str__(self) -> str:
        lines = [self.summary, f"  {'phase':<9} {'messages':>8} {'hops':>5}  what"]
        lines += [_row(each) for each in self.phases]
        some = CostPhase("total", "", self.messages, self.hops, any(p.at_most for p in self.phases))
        lines.append(_row(some).rstrip())
        if self.expected_s is not None and self.hop_s is not None:
            low, high = self.expected_s
            each_low, each_high = self.hop_s
            lines.append(
                f"  expected: {low * 1e3:.1f} to {high * 1e3:.1f} ms, {self.hops} hops of "
                f"{each_low * 1e3:.2f} to {each_high * 1e3:.2f} ms"
            )
        lines += [f"  hint: {hint}" for hint in self.hints]
        return "\n".join(lines)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    found = [each for each in known if each is not None]
    return sum(found) if len(found) == len(known) else None


def _row(phase: CostPhase) -> str:
    sign = "≤" if phase.at_most else ""
    messages = "?" if phase.messages is None else f"{sign}{phase.messages}"
    hops = "?" if phase.hops is None else f"{sign}{phase.hops}"
    took = "" if phase.took_s is None else f" (took {phase.took_s * 1e3:.1f} ms)"
    return f"  {phase.name:<9} {messages:>8} {hops:>5}  {phase.what}{took}"


# ── plans ────────────────────────────────────────────────────────────────────────────────


def explain_plan(steps: Sequence[tuple[str, str]], sketch: Sketch | None) -> Explanation:
    """Explain a plan, given as (client, kind) of its steps in order."""
    clients = list(dict.fromkeys(client for client, _ in steps))
    summary = f"static transaction: {_count(steps, 'operation')} of {_count(clients, 'client')}"
    hints: list[str] = []
    if sketch is None:
        bare = [CostPhase(name, what) for name, what in (*PLAN_PHASES, *END_PHASES[1:])]
        return Explanation("static", summary, tuple(bare), ("ask client.explain for numbers",))
    away = [name for name in clients if name in sketch.homes and sketch.homes[name] is None]
    if away:
        hints.append(f"{', '.join(away)}: not connected to the overlay, so it would be refused")
    if not sketch.root:
        hints.append("this overlay has no root, so it offers no transactions")
    here = sketch.broker
    homes = {name: sketch.homes.get(name) or here for name in clients}
    ways = [sketch.distance(here, home) for home in homes.values()]
    backs = [sketch.distance(home, sketch.root or here) for home in homes.values()]
    added = [homes[client] for client, kind in steps if kind in FLOODS]
    awaited = [homes[client] for client, kind in steps if kind == "advertise"]
    edges = len(sketch.links)
    operate = edges * (len(added) + len(awaited))
    operating = max((2 * sketch.depth(home) for home in awaited), default=0)
    counts = [(sum(ways), max(ways)), (operate, operating), (sum(backs), max(backs))]
    phases = [
        CostPhase(name, what, *count, at_most=name == "operate" and bool(added))
        for (name, what), count in zip(PLAN_PHASES, counts, strict=True)
    ]
    phases += _ending(sketch, submits=False)
    return Explanation("static", _on(summary, sketch), tuple(phases), tuple(hints), _hop_s(sketch))


PLAN_PHASES = (
    ("engage", "a letter to the broker of each client: its part of the plan"),
    ("operate", "concurrently: brokers install additions; advertisements must become effective"),
    ("report", "a letter from each of these brokers to the root: done"),
)
END_PHASES = (
    ("submit", "a letter to the root: all operations and events"),
    ("decide", "the root decides, tells all brokers, and hears that affected brokers have cut"),
    ("settle", "the root tells all brokers that it is effective everywhere"),
)


# ── transactions ─────────────────────────────────────────────────────────────────────────


def explain_transaction(
    made: Sequence[Made],
    isolated: bool,
    sketch: Sketch | None,
    past: Sequence[Sequence[Made]] = (),
) -> Explanation:
    operations = [each for each in made if each.kind not in ("commit", "abort")]
    invitations = [each for each in operations if each.kind == "invite"]
    kind = "dynamic, isolated" if isolated else "dynamic, not isolated"
    reached = sum(each.reached for each in invitations)
    summary = f"{kind}: {_count(operations, 'operation')} here, {reached} invited"
    validated = isolated and bool(invitations)
    hints = _hints(operations, invitations, past)
    ended = [each.seconds for each in made if each.kind == "commit"]
    phases: list[CostPhase] = []
    if isolated:
        phases.append(_opening(sketch))
    phases += [_operation(each, sketch) for each in operations]
    if sketch is None:
        phases += [CostPhase(name, what) for name, what in END_PHASES]
    else:
        phases += _ending(sketch, validated=validated)
        summary = _on(summary, sketch)
    if ended:
        phases[-1] = _timed(phases[-1], ended[0])
    hop_s = _hop_s(sketch) if sketch is not None else None
    return Explanation(kind, summary, tuple(phases), hints, hop_s)


def _opening(sketch: Sketch | None) -> CostPhase:
    what = "the root tells all brokers that it begins; its reads are as of this point"
    if sketch is None:
        return CostPhase("open", what)
    way = sketch.distance(sketch.broker, sketch.root)
    return CostPhase("open", what, 2 * way + 2 * len(sketch.links), 2 * way + 2 * _deep(sketch))


def _operation(made: Made, sketch: Sketch | None) -> CostPhase:
    what = f"{made.what}, {made.reached} reached" if made.kind == "invite" else made.what
    if made.kind not in (*FLOODS, "invite"):
        return CostPhase(
            made.kind, what or "recorded at the coordinator's broker", 0, 0, took_s=made.seconds
        )
    if sketch is None:
        return CostPhase(made.kind, what, took_s=made.seconds)
    cost = (2 * len(sketch.links), 2 * sketch.depth(sketch.broker))
    return CostPhase(made.kind, what, *cost, at_most=True, took_s=made.seconds)


def _shape(made: Iterable[Made]) -> list[tuple[str, str, int]]:
    """Kinds, filters or events, and how many clients were reached."""
    return [(each.kind, each.what, each.reached) for each in made]


def _hints(
    operations: Sequence[Made], invitations: Sequence[Made], past: Sequence[Sequence[Made]]
) -> tuple[str, ...]:
    if not operations:
        return ()
    if not invitations:
        return (
            "no client was invited: a Plan does the same in fewer round trips, because its "
            "operations do not wait for each other",
        )
    mine = _shape(operations)
    if sum(_shape(each) == mine for each in past) >= ALIKE:
        return (
            "earlier transactions had the same operations and reached as many clients: if the "
            "invited clients always do the same, a Plan can do it without invitations",
        )
    return ()


def _ending(sketch: Sketch, *, submits: bool = True, validated: bool = False) -> list[CostPhase]:
    edges, deep = len(sketch.links), _deep(sketch)
    way = sketch.distance(sketch.broker, sketch.root)
    told = dict(END_PHASES)
    found = [CostPhase("submit", told["submit"], way, way)] if submits else []
    if validated:
        what = "the root asks all brokers whether the reads are still valid"
        found.append(CostPhase("validate", what, 2 * edges, 2 * deep))
    # There, back from all, and before that back from brokers on the way to an affected one.
    found.append(CostPhase("decide", told["decide"], 3 * edges, 2 * deep, at_most=True))
    found.append(CostPhase("settle", told["settle"], edges, way))
    return found


def _deep(sketch: Sketch) -> int:
    return sketch.depth(sketch.root or sketch.broker)


def _timed(phase: CostPhase, took_s: float) -> CostPhase:
    return replace(phase, what=f"{phase.what}; time since submit", took_s=took_s)


def _on(summary: str, sketch: Sketch) -> str:
    where = f"{_count(sketch.brokers, 'broker')}, root {sketch.root or '–'}"
    return f"{summary}; {where}, coordinated at {sketch.broker}"


def _hop_s(sketch: Sketch) -> tuple[float, float] | None:
    """A hop takes half a round trip, or all of it if writing to disk takes all the time."""
    times = sketch.round_trips_s
    if not times:
        return None
    mean_s = sum(times) / len(times)
    return mean_s / 2, mean_s


def _count(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"
