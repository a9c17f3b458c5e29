"""The outcome of a demo without a run: complete, until a test removes something."""

from __future__ import annotations

from pathlib import Path

from motet.audit.verdicts import GUARANTEES, Audit
from motet.spark.archive.proof import Proof
from motet.spark.insight.report import InsightReport
from motet_labs.demo.clients import (
    CONSOLIDATE,
    DISPATCH,
    WATCHERS,
    AgentMove,
    EventSeen,
    HandOver,
    HandOvers,
    Heard,
    Stretch,
)
from motet_labs.demo.script import Attributes, Key, Script
from motet_labs.demo.story import Sample, StoryOutcome, Timeline, Wish

CASES = 4
HALF = 6
"""Of the events of a publisher."""
RESULT = "insight/query/0"
PLAN = "dispatcher/1"


def script() -> Script:
    """Two publishers, each with six events of each of its two cases, by turns."""
    events: dict[Key, Attributes] = {}
    for publisher in ("p0", "p1"):
        cases = [f"c{number}" for number in range(CASES) if number % 2 == int(publisher[1])]
        for number in range(1, 2 * HALF + 1):
            event = {"case": cases[number % 2], "step": "look", "n": number}
            events[publisher, number] = event
    return Script(events, 2)


def arrived(key: Key, event: Attributes, at: float = 1.0, tx: str = "", tick: int = 1) -> EventSeen:
    return EventSeen(key, dict(event), at, tick, tx)


def outcome(folder: Path) -> StoryOutcome:
    made = script()
    heard = Heard()
    for lot in made.lots:
        mine = [key for key in made.events if made.lot_of[key] == lot.name]
        for first, handler in ((0, "desk"), (HALF, "anna")):
            keys = [key for key in mine if first < key[1] <= first + HALF]
            came = [arrived(key, made.events[key]) for key in keys]
            heard.stretches.append(Stretch(lot.name, came, handler))
    for name in WATCHERS:
        heard.watched[name] = [arrived(key, event) for key, event in made.events.items()]
    lots = tuple(lot.name for lot in made.lots)
    heard.moved = [arrived(("anna", at), {"moved": lot}, tx=PLAN) for at, lot in enumerate(lots)]
    result = {"insight": "running", "events": len(made)}
    heard.insight = [arrived(("insight", 1), result, tx=RESULT, tick=5)]
    moves = HandOvers(
        [
            HandOver(DISPATCH, lots[:1], "anna", 1.1, "dispatcher/0"),
            HandOver(CONSOLIDATE, lots, "desk", 1.3, PLAN),
        ]
    )
    timeline = Timeline(began=0.0, killed_at_s=0.4, back_at_s=0.9)
    timeline.note("B3 is killed <at last>")
    count = len(made)
    timeline.samples = [Sample(at, count, count, count, count) for at in (0.0, 2.0)]
    audit = Audit(checked=dict.fromkeys(GUARANTEES, 1))
    told = StoryOutcome(
        Wish(folder), timeline, made, heard, moves, "a log of <nobody>", audit=audit
    )
    told.move = AgentMove("anna", "B4", "B2", 0.2, 0.3, 1, 1)
    told.archived = [(*key, dict(event)) for key, event in made.events.items()]
    told.in_logs = len(told.archived) + 1
    told.batches, told.written = [0], {RESULT: [5]}
    told.proof = Proof(1, (), {}, ())
    told.report = InsightReport(count, CASES, [], [], [], [], 0, 0, 0)
    return told
