"""The whole experiment of paper 5: overhead, then the three faults.

    report = await measure(FULL, directory, tell)

The result is written to the directory as JSON, with every single event and nack.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from motet.errors import MisuseError, MotetError
from motet.fleet.fleet import Fleet, links
from motet.fleet.process import free_ports
from motet_labs import figures
from motet_labs.experiments import paper5
from motet_labs.experiments.faults import (
    FAULTS,
    Arrival,
    FaultRecord,
    Injection,
    NackNoted,
    proxied,
    total_ms,
)
from motet_labs.experiments.overhead import Overhead, OverheadEffort, OverheadRun
from motet_labs.experiments.paper5 import Schedule
from motet_labs.experiments.report import ExperimentReport, PaperFigure, Section, table
from motet_labs.figures import Progress

PARTS = ("overhead", *FAULTS)
START_S = 8.0
"""Approximate start time of the overlay of the faults."""
SETTLING_S = 4.0
"""Approximate time that a fault takes beyond its schedule."""


@dataclass(frozen=True)
class ExactlyOncePlan:
    parts: tuple[str, ...] = PARTS
    effort: OverheadEffort = field(default_factory=OverheadEffort)
    schedules: dict[str, Schedule] = field(default_factory=lambda: paper5.SCHEDULES)
    subscribers: tuple[str, ...] = paper5.SUBSCRIBER_BROKERS
    """Brokers with a subscriber, in the overlay of the faults."""
    short: bool = False

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise MisuseError(f"unknown part {part!r}; choose from {', '.join(PARTS)}")

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(part for part in self.parts if part in FAULTS)

    @property
    def expected_s(self) -> float:
        took_s = self.effort.expected_s if "overhead" in self.parts else 0.0
        took_s += START_S if self.faults else 0.0
        return took_s + sum(self.schedules[fault].total_s + SETTLING_S for fault in self.faults)


FULL = ExactlyOncePlan()
SHORT = ExactlyOncePlan(
    effort=OverheadEffort(crowds=(100, 200), rounds=1, period_s=1.0),
    schedules=dict.fromkeys(FAULTS, Schedule(1.0, 1.0, 1.2, 1.5)),
    short=True,
)


async def measure(plan: ExactlyOncePlan, out: Path, tell: Progress) -> ExactlyOnceReport:
    """Run everything, and write `exactly-once.json` into the directory."""
    began, clock = datetime.now(UTC), time.monotonic()
    machine = figures.machine()
    scratch = Path(mkdtemp(prefix="motet-experiment-"))
    try:
        overhead = await _overhead(plan, scratch, tell) if "overhead" in plan.parts else None
        records = await _faults(plan, scratch, tell) if plan.faults else []
    except MotetError:
        raise  # it names the log of the failed broker, which must stay
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)
    took_s = time.monotonic() - clock
    report = ExactlyOnceReport(began, took_s, machine, plan, overhead, tuple(records))
    report.save(out)
    return report


async def _overhead(plan: ExactlyOncePlan, scratch: Path, tell: Progress) -> Overhead:
    tell("overhead: two brokers start")
    folder = scratch / "overhead"
    folder.mkdir(parents=True)
    return await OverheadRun(plan.effort, folder, tell).run()


async def _faults(plan: ExactlyOncePlan, scratch: Path, tell: Progress) -> list[FaultRecord]:
    tell("the overlay of the faults starts")
    folder = scratch / "faults"
    folder.mkdir(parents=True)
    topology = paper5.topology(free_ports(paper5.MOST_BROKERS), plan.subscribers)
    async with Fleet(topology, folder, proxied=proxied(links(topology))) as fleet:
        return [
            await Injection(fleet, fault, plan.schedules[fault], tell).run()
            for fault in plan.faults
        ]


# ── the report ───────────────────────────────────────────────────────────────────────────

TITLES = {
    "overhead": "Exactly once against best effort",
    "link": "Link {}–s1 fails",
    "broker": "Broker {} crashes",
    "publisher": "The publishers' broker {} crashes",
}
"""Formatted with the victim, where there is one."""
OVERHEAD_COLUMNS = {
    "publishers' broker, CPU %": "publishers_cpu_points",
    "subscribers' broker, CPU %": "subscribers_cpu_points",
    "local latency, ms": "local_ms",
    "remote latency, ms": "remote_ms",
    "remote, 99th percentile": "remote_p99_ms",
    "machine idle, %": "machine_idle_points",
}
LEAST_IDLE_POINTS = 5.0
BUSY = (
    "**The machine was overloaded:** it had no idle time in some rows, so their latencies include "
    "time that processes waited for a core. Repeat the experiment on a machine with more cores, or "
    "with no other load."
)


@dataclass(frozen=True)
class ExactlyOnceReport(ExperimentReport):
    name = "exactly-once"
    title = "Exactly-once delivery, measured"
    violation = "exactly-once events were lost, duplicated or out of order"

    plan: ExactlyOncePlan
    overhead: Overhead | None
    records: tuple[FaultRecord, ...]

    @property
    def findings(self) -> list[PaperFigure]:
        found = of_overhead(self.overhead) if self.overhead is not None else []
        for record in self.records:
            found += of_fault(record)
        return found

    @property
    def kept(self) -> bool:
        """Whether nothing was lost, duplicated or out of order."""
        whole = self.overhead is None or not (self.overhead.lost or self.overhead.amiss)
        return whole and all(record.account.kept for record in self.records)

    def details(self, series: bool) -> dict[str, Any]:
        told: dict[str, Any] = {"short": self.plan.short}
        if self.overhead is not None:
            told["overhead"] = self.overhead.to_json()
        for record in self.records:
            told[record.fault] = fault_json(record)
            if series:
                told[record.fault]["series"] = series_json(record)
        return told

    @property
    def setting(self) -> str:
        machine, short = self.machine, " --short" if self.plan.short else ""
        load = " / ".join(str(each) for each in machine.get("load_average", ()))
        return (
            f"Written by `motet experiment exactly-once{short}` on {self.began:%Y-%m-%d}, in "
            f"{self.took_s:.0f} s. The machine: {machine['cpu']}, {machine['cores']} cores for all "
            f"brokers and clients together; {machine['python']}, {machine['loop']}; load average "
            f"{load} before the start."
        )

    def sections(self) -> list[Section]:
        found = []
        if self.overhead is not None:
            head = ["subscribers", "delivery", *OVERHEAD_COLUMNS]
            before = [table(head, overhead_rows(self.overhead))]
            modes = [mode for row in self.overhead.rows for mode in row.modes.values()]
            if any(mode["machine_idle_points"] < LEAST_IDLE_POINTS for mode in modes):
                before.append(BUSY)
            found.append(Section("overhead", TITLES["overhead"], before))
        for each in self.records:
            title = TITLES[each.fault].format(each.victim)
            found.append(Section(each.fault, title, [_schedule(each)]))
        return found


def overhead_rows(found: Overhead) -> list[list[str]]:
    """Per number of subscribers and kind of delivery: the columns above."""
    rows = []
    for row in found.rows:
        for mode, measured in row.modes.items():
            values = [f"{measured[what]:.3g}" for what in OVERHEAD_COLUMNS.values()]
            rows.append([f"{row.subscribers:,}", mode.replace("_", " "), *values])
    return rows


def _schedule(record: FaultRecord) -> str:
    schedule, account = record.schedule, record.account
    return (
        f"Normal for {schedule.before_s:g} s, stalled for {schedule.stall_s:g} s, down for "
        f"{schedule.gone_s:g} s, back for {schedule.after_s:g} s. {paper5.PUBLISHERS} publishers "
        f"sent {account.published:,} events, {len(record.arrivals)} subscribers received "
        f"{account.delivered:,}."
    )


# ── figures of the overhead ──────────────────────────────────────────────────────────────

_POINTS, _PER_EVENT, _MS = "points of one core", "µs per event", "ms"
_LATER = f"about {paper5.LATENCY_MS:g}"
OVER_BEST_EFFORT = (
    ("CPU over best effort, publishers' broker", "publishers_cpu_points", _POINTS,
     f"about {paper5.PUBLISHER_BROKER_POINTS:g}", paper5.PUBLISHER_BROKER_POINTS),
    ("CPU over best effort, subscribers' broker", "subscribers_cpu_points", _POINTS,
     f"less than {paper5.SUBSCRIBER_BROKER_POINTS:g}", paper5.SUBSCRIBER_BROKER_POINTS),
    ("the same per event, publishers' broker", "publishers_cpu_us", _PER_EVENT, "", None),
    ("the same per event, subscribers' broker", "subscribers_cpu_us", _PER_EVENT, "", None),
    ("latency over best effort, local", "local_ms", _MS, _LATER, paper5.LATENCY_MS),
    ("latency over best effort, remote", "remote_ms", _MS, _LATER, paper5.LATENCY_MS),
)  # fmt: skip
"""Name, measurement, unit, the paper's words, and the maximum that is as good."""


def of_overhead(found: Overhead) -> list[PaperFigure]:
    part, sync = "overhead", found.sync
    figures = []
    for name, what, unit, said, most in OVER_BEST_EFFORT:
        value = found.worst(what)
        holds = None if most is None else value <= most
        figures.append(PaperFigure(part, name, value, unit, said, holds))
    bare = "a bare file synced at that pace"
    figures.insert(1, PaperFigure(part, f"{bare}: CPU", sync.cpu_points, _POINTS))
    return [
        *figures,
        PaperFigure(part, f"{bare}: one sync", sync.median_ms, _MS),
        PaperFigure(part, "events lost", found.lost, "", "none", not found.lost),
        PaperFigure(part, "doubled or out of order", found.amiss, "", "none", not found.amiss),
    ]


# ── figures of the faults ────────────────────────────────────────────────────────────────

LATE_MS = 250.0
"""Events with a higher latency were delayed by the fault."""
RAPID_S = 1.0
"""The paper calls recovery rapid where there is another path; this is our definition."""


def peak_ms(notes: Iterable[Arrival]) -> float:
    return max((note.latency_s * 1e3 for note in notes), default=0.0)


def late_until_s(notes: Iterable[Arrival]) -> float | None:
    """When the last delayed event arrived."""
    late = [note.sent + note.latency_s for note in notes if note.latency_s * 1e3 > LATE_MS]
    return max(late, default=None)


def consolidation(record: FaultRecord, cell: str) -> float | None:
    """The nack range that a cell sent upstream, relative to what it received from downstream."""
    members = paper5.CELLS[cell]
    asked = total_ms(record.nacks, "received", members, paper5.BELOW[cell])
    passed_on = total_ms(record.nacks, "sent", members, (paper5.PUBLISHER_BROKER,))
    return passed_on / asked if asked else None


def of_fault(record: FaultRecord) -> list[PaperFigure]:
    """The paper's figures for this fault; and losses, which it takes to be none."""
    if record.fault == "link":
        found = [
            _peak(record, "s1", f"{paper5.LINK_PEAK_MS:,.0f}, as the stall"),
            _peak(record, "s2", "unaffected"),
            _recovery(record, "fail"),
            _nacked(record, "s1"),
        ]
    elif record.fault == "broker":
        said = f"{paper5.CRASH_NACKED_MS:,.0f} for each pubend through it"
        found = [
            _peak(record, "s1", "as the stall"),
            _recovery(record, "fail"),
            _nacked(record, "s1", said),
            _nacked(record, "s2", said),
            *_consolidated(record, "IB1", f"almost perfect: {paper5.CONSOLIDATION:g}"),
        ]
    else:
        found = [
            _peak(record, "s1", "as long as p1 was gone"),
            _recovery(record, "heal"),
            _nacked(record, "s1"),
            *_consolidated(record, "IB1"),
            *_consolidated(record, "IB2"),
        ]
    account = record.account
    wrong = {"lost": account.lost, "doubled": account.doubled, "out of order": account.disordered}
    return found + [
        PaperFigure(record.fault, f"events {what}", count, "", "none", not count)
        for what, count in wrong.items()
    ]


def _recovery(record: FaultRecord, since: str, subscriber: str = "s1") -> PaperFigure:
    until_s = late_until_s(record.arrivals[subscriber])
    victim = "the link" if record.fault == "link" else record.victim
    verb = {"fail": "failed", "heal": "was back"}[since]
    took_s = max(0.0, until_s - record.marks[since]) if until_s is not None else 0.0
    name = f"{subscriber} has all delayed events, after {victim} {verb}"
    holds = took_s <= RAPID_S if since == "fail" else None
    return PaperFigure(record.fault, name, took_s, "s", "rapid", holds)


def _peak(record: FaultRecord, subscriber: str, said: str) -> PaperFigure:
    value = peak_ms(record.arrivals[subscriber])
    return PaperFigure(record.fault, f"longest latency at {subscriber}", value, "ms", said)


def _nacked(record: FaultRecord, broker: str, said: str = "") -> PaperFigure:
    value = total_ms(record.nacks, "sent", (broker,))
    return PaperFigure(record.fault, f"nack range sent by {broker}", value, "ms", said)


def _consolidated(record: FaultRecord, cell: str, said: str = "") -> list[PaperFigure]:
    share = consolidation(record, cell)
    if share is None:
        return []
    below = ", ".join(paper5.BELOW[cell])
    name = f"nack range from {cell} to p1, as a share of that from {below}"
    best = 1 / len(paper5.BELOW[cell])
    return [PaperFigure(record.fault, name, share, "", said or f"{best:.2g} is perfect")]


# ── faults as plain values ───────────────────────────────────────────────────────────────


def fault_json(record: FaultRecord) -> dict[str, Any]:
    """Without the single events."""
    return {
        "victim": record.victim,
        "schedule_s": asdict(record.schedule),
        "marks": [{"at_s": round(at_s, 3), "what": what} for what, at_s in record.marks.items()],
        "pubends": len(record.pubends),
        **record.account._asdict(),
        "latency": {name: _latency(notes) for name, notes in record.arrivals.items()},
        "nacks": _nacks(record.nacks),
    }


def _latency(notes: list[Arrival]) -> dict[str, Any]:
    times = [note.latency_s * 1e3 for note in notes]
    late = late_until_s(notes)
    return {
        "p50_ms": round(median(times), 3) if times else None,
        "peak_ms": round(peak_ms(notes), 3),
        "late_until_s": None if late is None else round(late, 3),
    }


def _nacks(noted: list[NackNoted]) -> dict[str, Any]:
    found: dict[str, dict[str, float]] = {}
    for each in noted:
        row = found.setdefault(
            each.broker, {"sent": 0, "sent_range_ms": 0.0, "received": 0, "received_range_ms": 0.0}
        )
        row[each.way] += 1
        row[f"{each.way}_range_ms"] = round(row[f"{each.way}_range_ms"] + each.range_ms, 3)
    return dict(sorted(found.items()))


def series_json(record: FaultRecord) -> dict[str, Any]:
    """Every event and every nack: the data of the plots."""

    def row(note: Arrival) -> list[float]:
        return [round(note.sent, 4), round(note.latency_s * 1e3, 3), note.publisher]

    return {
        "latency": {name: list(map(row, notes)) for name, notes in record.arrivals.items()},
        "latency_columns": ["sent_s", "latency_ms", "publisher"],
        "nacks": [
            [round(each.at, 4), each.broker, each.way, each.neighbour, round(each.range_ms, 3)]
            for each in record.nacks
        ],
        "nacks_columns": ["at_s", "broker", "way", "neighbour", "range_ms"],
    }
