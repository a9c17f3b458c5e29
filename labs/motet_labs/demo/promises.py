"""The promises judged: a plain comparison of all received events with those to be published,
Spark's proof, and the audit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.table import Table
from rich.text import Text

from motet.audit.verdicts import GUARANTEES, Audit
from motet_labs.demo.clients import CONSOLIDATE, EventSeen
from motet_labs.demo.script import Key, Script

if TYPE_CHECKING:
    from motet_labs.demo.story import StoryOutcome

EVENTS, HANDS, CRASH = "events of the log", "transactions", "a broker killed"
MOVE = "an agent moves to another broker"
SPARK, BACK = "Spark reads exactly once", "Spark writes back atomically"
AUDIT = "the audit of all histories"
BROKEN: Final = {
    "lost": "owed to a subscriber but never delivered",
    "doubled": "delivered more than once",
    "misrouted": "delivered to a client that was not owed it",
    "changed": "delivered with other attributes than published",
    "inverted": "delivered out of publisher order, or in another order than to another watcher",
    "torn": "delivered in part, or to both sides of a hand-over",
}


@dataclass(frozen=True)
class Promise:
    """A count. With a goal it is a promise; without one it says how much was tested."""

    section: str
    name: str
    count: float
    goal: float | None = None
    sense: Literal["=", "at least", "at most"] = "="
    unit: str = ""
    remark: str = ""

    @property
    def kept(self) -> bool | None:
        if self.goal is None:
            return None
        if self.sense == "=":
            return self.count == self.goal
        return self.count >= self.goal if self.sense == "at least" else self.count <= self.goal

    @property
    def shown(self) -> str:
        value = f"{self.count:,.1f}" if self.count % 1 else f"{self.count:,.0f}"
        return f"{value} {self.unit}".rstrip()

    @property
    def shown_goal(self) -> str:
        if self.goal is None:
            return ""
        sign = {"=": "", "at least": "≥ ", "at most": "≤ "}[self.sense]
        return f"{sign}{self.goal:,.0f}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"kept": self.kept}


def kept(promises: Sequence[Promise]) -> bool:
    """Whether all are kept; and there must be some."""
    judged = [each.kept for each in promises if each.kept is not None]
    return bool(judged) and all(judged)


VERDICTS: Final = {
    True: Text("kept", style="green"),
    False: Text("BROKEN", style="bold red"),
    None: Text(""),
}


def table(promises: Sequence[Promise]) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("promise", no_wrap=True)
    shown.add_column("count", justify="right", no_wrap=True)
    shown.add_column("goal", justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    shown.add_column("", style="dim")
    for section, some in groupby(promises, lambda each: each.section):
        shown.add_row(Text(section, style="bold"))
        for each in some:
            verdict = VERDICTS[each.kept]
            shown.add_row(f"  {each.name}", each.shown, each.shown_goal, verdict, each.remark)
    return shown


# ── a story judged ───────────────────────────────────────────────────────────────────────


def promises_of(told: StoryOutcome) -> list[Promise]:
    return [
        *_of_events(told),
        *_of_transactions(told),
        *_of_move(told),
        *_of_crash(told),
        *_of_reading(told),
        *_of_writing(told),
        *_of_audit(told.audit),
    ]


def _none(section: str, found: Counter[str], *names: str) -> list[Promise]:
    """The counts of these violations, which must all be zero."""
    return [Promise(section, name, found[name], 0.0, remark=BROKEN[name]) for name in names]


def _of_events(told: StoryOutcome) -> list[Promise]:
    stretches = [(each.lot, each.arrivals) for each in told.heard.stretches]
    watched = told.heard.watched
    both = compare_handlers(told.script, stretches)
    both += compare_watchers(told.script, watched.values())
    to = f"to one handler each, and in total order to each of {len(watched)} watchers"
    return [
        Promise(EVENTS, "published", len(told.script), remark=told.source),
        Promise(EVENTS, "delivered", both["delivered"], both["owed"], remark=to),
        *_none(EVENTS, both, *BROKEN),
    ]


def _of_transactions(told: StoryOutcome) -> list[Promise]:
    done = told.moves.done
    plans = {each.tx: each.lots for each in done if each.kind == CONSOLIDATE}
    seen = [(each.transaction, each.attributes["moved"]) for each in told.heard.moved]
    blocks = compare_blocks(seen, plans)
    moves = sum(len(each.lots) for each in done)
    aborted = f"{told.moves.aborted} more were aborted and retried"
    whole = "the events of each in one block, in the order of the plan"
    told_by = "plans received as a whole"
    return [
        Promise(HANDS, "hand-overs committed", len(done), remark=aborted),
        Promise(HANDS, "lots that changed hands", moves, 1, "at least"),
        Promise(HANDS, told_by, blocks["delivered"], blocks["owed"], remark=whole),
        *_none(HANDS, blocks, "lost", "doubled", "misrouted", "torn"),
    ]


def _of_move(told: StoryOutcome) -> list[Promise]:
    move = told.move
    if move is None:
        return [Promise(MOVE, "moved", 0, 1)]
    stretches = [each for each in told.heard.stretches if each.handler == move.agent]
    ended = told.timeline.began + move.ended_s
    after = sum(each.at > ended for stretch in stretches for each in stretch.arrivals)
    found = compare_stretches(told.script, [(each.lot, each.arrivals) for each in stretches])
    moved = f"{move.agent}, from {move.source} to {move.target}, in {move.took_s * 1e3:,.0f} ms"
    lots = f"it had {move.lots} lots then, and {len(stretches)} times one in all"
    return [
        Promise(MOVE, "moved", 1, 1, remark=moved),
        Promise(MOVE, f"events handled at {move.source}", found["delivered"] - after, remark=lots),
        Promise(MOVE, f"events handled at {move.target}", after),
        Promise(MOVE, "missed", found["lost"], 0, remark="the agent that moved missed nothing"),
        *_none(MOVE, found, "doubled", "inverted"),
    ]


def _of_crash(told: StoryOutcome) -> list[Promise]:
    down_s, sessions = told.timeline.down_s, told.heard.lost_sessions
    return [
        Promise(CRASH, "SIGKILL to the broker in the middle", int(down_s > 0), 1),
        Promise(CRASH, "restarted, with all links up", round(down_s, 1), unit="s"),
        Promise(CRASH, "longest silence for a watcher", round(told.silence_s, 1), unit="s"),
        Promise(CRASH, "sessions lost", sessions, 0, remark="clients resume their sessions"),
    ]


def _of_reading(told: StoryOutcome) -> list[Promise]:
    came = [EventSeen((who, number), event) for who, number, event in told.archived]
    found = compare(told.script, came, told.script.steps)
    differ = sum(told.proof.differences.values()) if told.proof is not None else 1
    kept_away = told.in_logs - len(told.archived)
    remark = f"brokers filtered out {kept_away:,} more events of the logs"
    return [
        Promise(SPARK, "archived", found["delivered"], found["owed"], remark=remark),
        *_none(SPARK, found, "lost", "doubled", "misrouted", "changed"),
        Promise(SPARK, "archive and logs differ", differ, 0, remark="compared row by row"),
    ]


def _of_writing(told: StoryOutcome) -> list[Promise]:
    insight = told.heard.insight
    blocks = compare_blocks([(each.transaction, each.tick) for each in insight], told.written)
    numbers = {int(tx.rpartition("/")[2]): tx for tx in told.written if tx.startswith("insight/")}
    last = numbers[max(numbers)] if numbers else ""
    counted = [each.attributes["events"] for each in insight if each.transaction == last]
    totals = sum(int(str(each)) for each in counted)
    whole = "a subscriber sees each batch of Spark as one transaction"
    noted = f"Spark's own checkpoint has {len(told.batches)} batches"
    missing, owed = len(set(told.batches) ^ set(numbers)), len(told.script.counted)
    once = "each event once, although a broker was killed"
    return [
        Promise(BACK, "batches received whole", blocks["delivered"], blocks["owed"], remark=whole),
        *_none(BACK, blocks, "lost", "doubled", "misrouted", "torn"),
        Promise(BACK, "batches not published once", missing, 0, remark=noted),
        Promise(BACK, "events counted by the last result", totals, owed, remark=once),
    ]


def _of_audit(found: Audit | None) -> list[Promise]:
    """For every guarantee, how often it was tested and how often it was violated."""
    if found is None or not (found.findings or any(found.checked.values())):
        return [Promise(AUDIT, "audit completed", 0, 1)]
    said = []
    for name, meaning in GUARANTEES.items():
        checked, broken = found.checked.get(name, 0), found.violations(name)
        remark = f"{meaning}; {f'{checked:,}' if checked else 'nothing'} checked"
        goal = 0.0 if checked or broken else None  # what was not tested was not kept
        said.append(Promise(AUDIT, name, broken, goal, remark=remark))
    return said


# ── expected and received events compared ────────────────────────────────────────────────
# All functions count events owed and delivered, and the violations in BROKEN.


def compare(script: Script, came: Sequence[EventSeen], owed: Collection[Key]) -> Counter[str]:
    """Compare the events received with those owed once each, in any order."""
    events = script.events
    times = Counter(each.key for each in came)
    return Counter(
        owed=len(owed),
        delivered=len(came),
        lost=sum(key not in times for key in owed),
        doubled=sum(count - 1 for count in times.values()),
        misrouted=sum(each.key not in events or each.key not in owed for each in came),
        changed=sum(events.get(each.key, each.attributes) != each.attributes for each in came),
    )


def compare_handlers(
    script: Script, stretches: Iterable[tuple[str, Sequence[EventSeen]]]
) -> Counter[str]:
    """Whether each event of a case went to exactly one handler. `stretches`: the deliveries of each
    subscription to a lot, in order."""
    given = [(lot, came) for lot, came in stretches if came]
    found = compare(script, [each for _, came in given for each in came], script.lot_of.keys())
    found["misrouted"] += sum(
        script.lot_of.get(each.key, lot) != lot for lot, came in given for each in came
    )
    found["inverted"] = sum(disordered(came) for _, came in given)
    found["torn"] = _interleaved(given)
    return found


def compare_stretches(
    script: Script, stretches: Iterable[tuple[str, Sequence[EventSeen]]]
) -> Counter[str]:
    """Whether one handler received each event of its lots once, and in order, from the first to the
    last one that it received of each lot and publisher while it had the lot."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for key, lot in script.lot_of.items():
        numbers[lot, key[0]].append(key[1])
    found: Counter[str] = Counter()
    for lot, came in stretches:
        times: dict[str, Counter[int]] = defaultdict(Counter)
        for each in came:
            times[each.key[0]][each.key[1]] += 1
        for publisher, those in times.items():
            first, last = min(those), max(those)
            owed = [number for number in numbers[lot, publisher] if first <= number <= last]
            found["owed"] += len(owed)
            found["lost"] += sum(number not in those for number in owed)
        found["delivered"] += len(came)
        found["doubled"] += sum(many - 1 for each in times.values() for many in each.values())
        found["inverted"] += disordered(came)
    return found


def _interleaved(given: Iterable[tuple[str, Sequence[EventSeen]]]) -> int:
    """Hand-overs where one side got an event from the range of the other side. Per lot and
    publisher, each stretch is a range of numbers; no two may overlap."""
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for lot, came in given:
        numbers: dict[str, list[int]] = defaultdict(list)
        for each in came:
            numbers[each.key[0]].append(each.key[1])
        for publisher, those in numbers.items():
            ranges[lot, publisher].append((min(those), max(those)))
    wrong = 0
    for found in ranges.values():
        highest = 0
        for first, last in sorted(found):
            wrong += first <= highest
            highest = max(highest, last)
    return wrong


def disordered(came: Iterable[EventSeen]) -> int:
    """Events that came after a later one of the same publisher."""
    highest: Counter[str] = Counter()
    wrong = 0
    for publisher, number in (each.key for each in came):
        wrong += number < highest[publisher]
        highest[publisher] = max(number, highest[publisher])
    return wrong


def swapped(one: Sequence[EventSeen], other: Sequence[EventSeen]) -> int:
    """Adjacent events of one sequence that are inverted in the other. If there are none, all common
    events are in the same order."""
    places = {each.key: at for at, each in enumerate(other)}
    common = [places[each.key] for each in one if each.key in places]
    return sum(then < first for first, then in pairwise(common))


def compare_watchers(script: Script, watched: Collection[Sequence[EventSeen]]) -> Counter[str]:
    """Whether each saw all events of cases once, in publisher order, and all in one order."""
    found: Counter[str] = Counter()
    for came in watched:
        found += compare(script, came, script.lot_of.keys())
        found["inverted"] += disordered(came)
    found["inverted"] += sum(swapped(first, then) for first, then in pairwise(watched))
    return found


def compare_blocks(
    seen: Sequence[tuple[str, object]], owed: Mapping[str, Sequence[object]]
) -> Counter[str]:
    """Whether a subscriber saw each committed transaction as one block, with all of its events.
    `seen` has a transaction and a mark per event; `owed` has the marks of all, by transaction and
    in order."""
    blocks = [
        (tx, [mark for _, mark in events]) for tx, events in groupby(seen, lambda each: each[0])
    ]
    times = Counter(tx for tx, _ in blocks)
    return Counter(
        owed=len(owed),
        delivered=len(times),
        lost=sum(tx not in times for tx in owed),
        doubled=sum(count - 1 for count in times.values()),
        misrouted=sum(tx not in owed for tx in times),
        torn=sum(tx in owed and marks != list(owed[tx]) for tx, marks in blocks),
    )
