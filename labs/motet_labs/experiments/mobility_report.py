"""The figures of clients that move, beside the words of paper 3 and our goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from motet_labs.experiments import paper3
from motet_labs.experiments.mobility_plan import WHOLE, MobilityPlan
from motet_labs.experiments.movements import EventAccount, MoveRow, Point, Rest
from motet_labs.experiments.report import ExperimentReport, PaperFigure, Section, table
from motet_labs.experiments.rivals import COVERED, RECONFIGURATION, REISSUE, SURE
from motet_labs.experiments.shapes import SHAPES, WantedInterval, covered

FASTER: Final = 10.0
"""Covering per reconfiguration, at least."""
AS_REISSUE: Final = 1.2
"""Reconfiguration per reissue, at most."""
STABLE: Final = 1.2
"""The slowest per the fastest of a row of reconfigurations, at most."""
GOAL: Final = "(goal: "
CONTROL_PER_HOP, SOFT_PER_HOP = 3.0, 1.0

TITLES = {
    "workloads": "Subscription workloads",
    "clients": "Number of clients",
    "single": "A single client",
    "incremental": "Incremental movement",
    "topology": "Size of the overlay",
    "wide-area": "Wide area",
    "all": "All movements",
}
VARIED = {
    "workloads": "clients",
    "clients": "clients",
    "single": "clients",
    "incremental": "movers",
    "topology": "brokers",
    "wide-area": "clients",
}


@dataclass(frozen=True)
class MobilityReport(ExperimentReport):
    name = "mobility"
    title = "Clients that move, measured"
    violation = "an exactly-once event was lost, doubled or out of order while clients moved"

    plan: MobilityPlan
    rows: tuple[MoveRow, ...]
    points: Mapping[str, Sequence[Point]]
    """Of every line: the movements of one workload over time."""
    at_rest: Mapping[str, Rest]
    """Of every line, if the part with a single client was run."""

    @property
    def findings(self) -> list[PaperFigure]:
        return findings(self.rows, self.at_rest)

    @property
    def kept(self) -> bool:
        """No exactly-once event was lost, doubled or out of order."""
        return not any(row.events.wrong for row in self.rows if row.line == SURE.name)

    def details(self, series: bool) -> dict[str, Any]:
        plan = self.plan
        told: dict[str, Any] = {
            "quick": plan.quick,
            "pause_s": {part: plan.pause_of(part) for part in plan.parts if part != "single"},
            "slice_s": {part: plan.slice_of(part) for part in plan.parts if part != "single"},
            "rounds": plan.rounds,
            "events_per_s": plan.per_s * len(paper3.PUBLISHERS),
            "hops": paper3.HOPS,
            "workloads": {name: drawn(plan.wanted(name, plan.clients)) for name in plan.workloads},
            "goals": [
                {"name": each.name, "value": _short(each.value), "kept": each.holds}
                for each in self.findings
                if GOAL in each.name
            ],
            "rows": [row.to_json() for row in self.rows],
            "at_rest_per_s": {
                line: {key: round(value, 2) for key, value in rest.per_s._asdict().items()}
                for line, rest in self.at_rest.items()
            },
        }
        if series:
            told["series"] = {
                line: [[round(at_s, 3), round(ms, 2), direct] for at_s, ms, direct in some]
                for line, some in self.points.items()
            }
            told["series_columns"] = ["at_s", "ms", "covers_directly"]
        return told

    @property
    def setting(self) -> str:
        plan, about = self.plan, self.machine
        load = "/".join(str(each) for each in about["load_average"])
        scale = plan.pause_s / paper3.PAUSE_S
        pause = "as in the paper" if scale == 1 else f"{scale:.2g} times as long as in the paper"
        return (
            f"Written by `motet experiment mobility` on {self.began:%Y-%m-%d}, in "
            f"{self.took_s:.0f} s. The machine: {about['cpu']}, {about['cores']} cores for all "
            f"brokers and clients together; {about['python']}, {about['loop']}; load average "
            f"{load} before it began. Subscribers move between brokers that are {paper3.HOPS} "
            f"links apart, and stay {plan.pause_s:g} s at each, {pause}, in all lines. "
            f"{len(paper3.PUBLISHERS)} publishers make {plan.per_s:g} events per second each. The "
            f"lines take turns, in slices of {plan.slice_s:g} s; the first client moves in each. "
            "Ratios are of medians."
        )

    def sections(self) -> list[Section]:
        there = {each.part for each in self.findings}
        return [
            Section(part, TITLES[part], self._before(part), self._tables(part))
            for part in (*self.plan.parts, "all")
            if part in there
        ]

    def _before(self, part: str) -> list[str]:
        plan = self.plan
        match part:
            case "workloads":
                return [LINES_EXPLAINED, DRAWN_EXPLAINED, self._drawn()]
            case "clients":
                return [f"{WHOLE_EXPLAINED} {self._paused()}"]
            case "topology":
                return [WHOLE_EXPLAINED]
            case "single":
                return [
                    "Only the subscription moves that covers all others; the others are at random "
                    "brokers. It moves back and forth, in all lines in turn."
                ]
            case "incremental":
                steps = ", then ".join(f"{plan.step} {step}" for step in paper3.STEPS)
                return [
                    f"Of {plan.clients} clients, more and more move: {steps}. The others are at "
                    f"random brokers. Pauses are {plan.brisk_pause_s:g} s, because few move."
                ]
            case "wide-area":
                shown = ", ".join(f"{delay_s * 1e3:g}" for delay_s in plan.delays_s)
                return [
                    f"Links between brokers have delays of {shown} ms, in turn; those of clients "
                    "have none."
                ]
            case "all":
                return [SOFT_EXPLAINED]
        return []

    def _paused(self) -> str:
        plan = self.plan
        shown = [plan.pause_of("clients"), plan.slice_of("clients")]
        shown += [max(plan.counts) / pause_s for pause_s in (plan.pause_s, plan.long_pause_s)]
        return (
            "Pauses are {:g} s here, and slices {:g} s, for all numbers of clients and in all "
            "lines: with those of the other parts, {:g} moves per second would be asked for in the "
            "end, instead of {:g}, and all would wait for the same processors."
        ).format(*shown)

    def _drawn(self) -> str:
        names = self.plan.workloads
        told = {name: drawn(self.plan.wanted(name, self.plan.clients)) for name in names}
        rows = [
            [name, *(_told(told[name][what]) for what in ("covers", "directly"))] for name in names
        ]
        return table(["workload", "subscriptions cover", "directly"], rows)

    def _tables(self, part: str) -> list[str]:
        rows = [row for row in self.rows if row.part == part]
        if not rows:
            return []
        names = ["workload", VARIED[part], "line"]
        times, messages = [], []
        for row in rows:
            which = [row.workload, f"{row.at:,}", row.line]
            times.append(which + _times(row))
            messages.append(which + _messages(row))
        return [
            table([*names, *TIMES], times),
            MESSAGES_EXPLAINED,
            table([*names, *SENT], messages),
        ]


WHOLE_EXPLAINED = f"The workload “{WHOLE}”: one subscription covers all others."
LINES_EXPLAINED = (
    "The lines: *reconfiguration* is `client.move`. *Covering* is the traditional movement of the "
    "paper, on brokers whose covering takes back what a wider filter covers: the client "
    "unsubscribes, leaves, connects to the other broker and subscribes again. Every operation is "
    "awaited until it is effective in the overlay; the column *steps* shows how long that takes "
    "for leaving, connecting and subscribing. *Reissue without covering* is the same on brokers "
    "without covering. These three have the same best-effort events; *reconfiguration, exactly "
    "once* has exactly-once events. An overlay with covering offers no exactly-once delivery, so "
    "its subscriptions need no messages about where they start in the logs; those without do."
)
DRAWN_EXPLAINED = (
    "The filters: a group has ten subscriptions in the shape of one of the paper's workloads, and "
    "clients fill one group after the other, so that no two have the same filter. (A copy of a "
    "filter would cover all that the original covers; while one of them stays, moving the other "
    "uncovers nothing.) For “random”, each client gets any node of any shape. In "
    f"“{WHOLE}” all clients are in one group: the first covers all others, as in the "
    "paper's experiment with a single client."
)
MESSAGES_EXPLAINED = (
    "Messages between brokers, per movement. Control: parts of moves, (un)subscriptions, their "
    "echoes, announcements of sessions, and others (starts in the logs). Beside that soft frames "
    "of moves, frames of the exactly-once streams, and frames with best-effort events. CPU is "
    "that of all brokers."
)
SOFT_EXPLAINED = (
    "A move sends two control messages per hop, the commit and its answer. Soft frames are the "
    "offer to the target, its answer, and the best-effort events that follow the client; the last "
    "frame of these says that no more will come. Nothing durable is prepared before the decision, "
    "so the offer and its answer are soft, and are repeated while no answer comes."
)
TIMES = (
    "moves", "per s", "p50, ms", "mean", "p99", "covering ones", "their p50", "steps, p50",
)  # fmt: skip
SENT = (
    "control", "moves", "routes", "echoes", "sessions", "others", "soft", "stream", "events",
    "CPU, ms", "events missed",
)  # fmt: skip


def _times(row: MoveRow) -> list[str]:
    latency, wide = row.latency, row.wide
    steps = " + ".join(f"{ms:.3g}" for ms in row.steps_ms) or "–"
    shown = [f"{each:.3g}" for each in (row.per_s, latency.p50_ms, latency.mean_ms, latency.p99_ms)]
    those = [f"{wide.moves:,}", f"{wide.p50_ms:.3g}" if wide.moves else "–", steps]
    return [f"{latency.moves:,}", *shown, *those]


def _messages(row: MoveRow) -> list[str]:
    sent = [f"{each:,.1f}" for each in row.traffic]
    return [*sent, f"{row.cpu_ms:.3g}", f"{row.events.missed:,} of {row.events.expected:,}"]


def drawn(wanted: Sequence[WantedInterval]) -> dict[str, dict[int, int]]:
    """How many subscriptions cover how many others, in all and directly."""
    direct = Counter(each.direct for each in wanted)
    return {
        "covers": dict(sorted(Counter(covered(wanted)).items(), reverse=True)),
        "directly": dict(sorted(direct.items(), reverse=True)),
    }


def _told(counts: Mapping[int, int]) -> str:
    return ", ".join(f"{those:,} cover {count:,}" for count, those in counts.items())


# ── figures ──────────────────────────────────────────────────────────────────────────────


def findings(rows: Sequence[MoveRow], at_rest: Mapping[str, Rest]) -> list[PaperFigure]:
    found: list[PaperFigure] = []
    for part, of_part in OF_PARTS.items():
        some = [row for row in rows if row.part == part]
        if some:
            found += of_part(Known(some))
        if part == "single":
            found += _of_streams(some, at_rest)
    return found + _of_all(rows) if rows else found


class Known:
    """The rows of a part, by line, workload and what the part varies."""

    def __init__(self, rows: Sequence[MoveRow]) -> None:
        self.rows = rows
        self._known = {(row.line, row.workload, row.at): row for row in rows}
        self.places = list(dict.fromkeys((row.workload, row.at) for row in rows))

    def at(self, line: str, place: tuple[str, int]) -> MoveRow:
        return self._known[line, *place]

    def line(self, line: str) -> list[MoveRow]:
        return [row for row in self.rows if row.line == line]

    def pairs(self, line: str) -> Iterable[tuple[MoveRow, MoveRow]]:
        """Rows of a line, each with its reconfiguration, where both have movements."""
        for place in self.places:
            one, two = self.at(line, place), self.at(RECONFIGURATION.name, place)
            if one.latency.moves and two.latency.moves:
                yield one, two


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _per(one: float, two: float) -> float:
    return one / two if two else 0.0


def _stable(
    part: str, what: str, rows: Sequence[MoveRow], said: str, most: float | None
) -> list[PaperFigure]:
    times = [row.latency.p50_ms for row in rows if row.latency.moves]
    if len(times) < 2:
        return []
    ratio = _per(max(times), min(times))
    name = f"{rows[0].line}, slowest per fastest of {what}"
    name += f" {GOAL}at most {most:g})" if most else ""
    return [PaperFigure(part, name, ratio, "times", said, ratio <= most if most else None)]


def _of_workloads(known: Known) -> list[PaperFigure]:
    found = []
    for covering, moved in known.pairs(COVERED.name):
        ratio = _per(covering.latency.p50_ms, moved.latency.p50_ms)
        name = f"covering per reconfiguration, {covering.workload}: all movements"
        said = paper3.FASTER if covering.workload == SHAPES[0] else ""
        found.append(PaperFigure("workloads", name, ratio, "times", said))
        if covering.workload in (SHAPES[0], WHOLE) and covering.wide.moves and moved.wide.moves:
            ratio = _per(covering.wide.p50_ms, moved.wide.p50_ms)
            name = f"covering per reconfiguration, {covering.workload}: movements of covering "
            name += f"subscriptions {GOAL}at least {FASTER:g})"
            said = paper3.FASTER
            found.append(PaperFigure("workloads", name, ratio, "times", said, ratio >= FASTER))
    for reissued, moved in known.pairs(REISSUE.name):
        if reissued.workload == "distinct":
            ratio = _per(moved.latency.p50_ms, reissued.latency.p50_ms)
            name = f"reconfiguration per reissue, distinct {GOAL}at most {AS_REISSUE:g})"
            found.append(PaperFigure("workloads", name, ratio, "times", "", ratio <= AS_REISSUE))
            found.append(_without_leave("workloads", moved, reissued))
    moved_all = known.line(RECONFIGURATION.name)
    found += _stable("workloads", "the workloads", moved_all, paper3.STABLE, STABLE)
    found += _stable("workloads", "the workloads", known.line(COVERED.name), "varies greatly", None)
    for row in moved_all:
        name = f"reconfiguration, {row.workload}: messages per movement, control and soft"
        value = row.traffic.control + row.traffic.soft
        found.append(PaperFigure("workloads", name, value, "", paper3.STABLE))
    for row in known.line(COVERED.name):
        name = f"covering, {row.workload}: (un)subscriptions per movement"
        found.append(PaperFigure("workloads", name, row.traffic.routes, ""))
    return found


def _without_leave(part: str, moved: MoveRow, reissued: MoveRow) -> PaperFigure:
    """If leaving took no time: the least that a mover waits for who does not care what is left
    behind."""
    rest = sum(reissued.steps_ms[1:])
    name = "the same per connecting and subscribing alone, without the time to leave"
    return PaperFigure(part, name, _per(moved.latency.p50_ms, rest), "times")


def _of_clients(known: Known) -> list[PaperFigure]:
    counts = [at for _, at in known.places]
    what = f"{min(counts):,} to {max(counts):,} clients"
    moved = known.line(RECONFIGURATION.name)
    found = _stable("clients", what, moved, paper3.STABLE, STABLE)
    found += _stable("clients", what, known.line(COVERED.name), "degrades", None)
    for covering, moving in known.pairs(COVERED.name):
        ratio = _per(covering.latency.p50_ms, moving.latency.p50_ms)
        name = f"covering per reconfiguration, {covering.at:,} clients"
        found.append(PaperFigure("clients", name, ratio, "times", "much better"))
    return found


def _of_single(known: Known) -> list[PaperFigure]:
    found = []
    for covering, moved in known.pairs(COVERED.name):
        covers = covering.at - 1
        ratio = _per(covering.latency.p50_ms, moved.latency.p50_ms)
        name = f"covering per reconfiguration, one subscription that covers {covers:,}"
        name += f" {GOAL}at least {FASTER:g})"
        found.append(PaperFigure("single", name, ratio, "times", paper3.FASTEST, ratio >= FASTER))
        for row, what in ((moved, "control and soft"), (covering, "(un)subscriptions")):
            sent = row.traffic
            value = sent.control + sent.soft if row is moved else sent.routes
            name = f"{row.line}, covers {covers:,}: messages per movement, {what}"
            found.append(
                PaperFigure("single", name, value, "", "" if row is moved else "much more")
            )
        reissued = known.at(REISSUE.name, (covering.workload, covering.at))
        ratio = _per(moved.latency.p50_ms, reissued.latency.p50_ms)
        name = f"reconfiguration per reissue, covers {covers:,}"
        found.append(PaperFigure("single", name, ratio, "times"))
    return found


def _of_streams(rows: Sequence[MoveRow], at_rest: Mapping[str, Rest]) -> list[PaperFigure]:
    found = []
    for row in rows:
        rest = at_rest.get(row.line)
        if rest is not None and row.at == rows[0].at:
            name = f"{row.line}: stream frames per movement, beyond those when nobody moves"
            found.append(PaperFigure("single", name, rest.beyond(row).stream, ""))
    return found


def _of_incremental(known: Known) -> list[PaperFigure]:
    found = _stable(
        "incremental", "the steps", known.line(RECONFIGURATION.name), paper3.STABLE, STABLE
    )
    for covering, moved in known.pairs(COVERED.name):
        ratio = _per(covering.latency.mean_ms, moved.latency.mean_ms)
        name = f"covering per reconfiguration, {covering.at} movers, means"
        found.append(PaperFigure("incremental", name, ratio, "times"))
    return found


def _of_topology(known: Known) -> list[PaperFigure]:
    sizes = [at for _, at in known.places]
    what = f"{min(sizes)} to {max(sizes)} brokers"
    said = paper3.INSENSITIVE
    found = _stable("topology", what, known.line(RECONFIGURATION.name), said, STABLE)
    return found + _stable("topology", what, known.line(COVERED.name), said, None)


def _of_far(known: Known) -> list[PaperFigure]:
    found = []
    for line in (COVERED, REISSUE):
        for other, moved in known.pairs(line.name):
            ratio = _per(other.latency.p50_ms, moved.latency.p50_ms)
            name = f"{line.name} per reconfiguration, {other.workload}"
            said = "faster" if line is COVERED else ""
            found.append(PaperFigure("wide-area", name, ratio, "times", said))
    for row in known.line(RECONFIGURATION.name):
        name = f"reconfiguration, {row.workload}: latency"
        found.append(PaperFigure("wide-area", name, row.latency.p50_ms, "ms", paper3.SLOWER))
    return found


OF_PARTS = {
    "workloads": _of_workloads,
    "clients": _of_clients,
    "single": _of_single,
    "incremental": _of_incremental,
    "topology": _of_topology,
    "wide-area": _of_far,
}


def _of_all(rows: Sequence[MoveRow]) -> list[PaperFigure]:
    ours = [row for row in rows if row.line in (RECONFIGURATION.name, SURE.name)]
    found = []
    for what, goal in (("control", CONTROL_PER_HOP), ("soft", SOFT_PER_HOP)):
        most = max((getattr(row.traffic, what) for row in ours), default=0.0) / paper3.HOPS
        name = f"{what} messages of a move per hop, the most of any line {GOAL}at most {goal:g})"
        found.append(PaperFigure("all", name, most, "", paper3.LIMITED, most <= goal))
    sure = [row for row in rows if row.line == SURE.name]
    moves = sum(row.latency.moves for row in sure)
    for what in ("missed", "doubled", "swapped"):
        wrong = sum(getattr(row.events, what) for row in sure)
        name = f"exactly-once events {what} during {moves:,} moves"
        found.append(PaperFigure("all", name, wrong, "", "none", not wrong))
    for line in (RECONFIGURATION, COVERED, REISSUE):
        some = [row for row in rows if row.line == line.name]
        moves = sum(row.latency.moves for row in some)
        events = EventAccount(*map(sum, zip(*(row.events for row in some), strict=True)))
        name = f"{line.name}: best-effort events missed per 1,000 movements"
        found.append(PaperFigure("all", name, _per(1000 * events.missed, moves), ""))
        if line is RECONFIGURATION:
            name = f"{line.name}: best-effort events doubled or out of order"
            wrong = events.doubled + events.swapped
            found.append(PaperFigure("all", name, wrong, "", "none", not wrong))
    failed = sum(row.failed for row in rows)
    return [*found, PaperFigure("all", "movements that failed", failed, "", "", not failed)]
