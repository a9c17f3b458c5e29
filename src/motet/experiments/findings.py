"""What an experiment amounts to, beside what the paper says; and all of it as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from motet.experiments import paper
from motet.experiments.faults import Record, pubends
from motet.experiments.nacks import NackNoted, total_ms
from motet.experiments.overhead import Overhead
from motet.experiments.traffic import Arrival

LATE_MS = 250.0
"""What takes longer than this was delayed by the fault."""
RAPID_S = 1.0
"""The paper says that recovery is rapid where there is another way; we say what that means."""


@dataclass(frozen=True)
class Finding:
    """One figure. `paper` is what the paper says of it, in words; `holds` says whether we are at
    least as good, where that is a question."""

    part: str
    name: str
    value: float
    unit: str
    paper: str = ""
    holds: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"value": float(f"{self.value:.4g}")}


# ── overhead ─────────────────────────────────────────────────────────────────────────────


def of_overhead(found: Overhead) -> list[Finding]:
    def finding(name: str, what: str, unit: str, said: str, most: float | None = None) -> Finding:
        value = found.worst(what)
        return Finding("overhead", name, value, unit, said, None if most is None else value <= most)

    points, per_event, later = "points of one core", "µs per event", "ms"
    publishers, subscribers = "publishers' broker", "subscribers' broker"
    sync = found.sync
    return [
        finding(
            f"CPU over best effort, {publishers}",
            "publishers_cpu_points",
            points,
            f"about {paper.PUBLISHER_BROKER_POINTS:g}",
            paper.PUBLISHER_BROKER_POINTS,
        ),
        Finding("overhead", "a bare file synced at that pace: CPU", sync.cpu_points, points),
        finding(
            f"CPU over best effort, {subscribers}",
            "subscribers_cpu_points",
            points,
            f"less than {paper.SUBSCRIBER_BROKER_POINTS:g}",
            paper.SUBSCRIBER_BROKER_POINTS,
        ),
        finding(f"the same per event, {publishers}", "publishers_cpu_us", per_event, ""),
        finding(f"the same per event, {subscribers}", "subscribers_cpu_us", per_event, ""),
        finding(
            "latency over best effort, local",
            "local_ms",
            later,
            f"about {paper.LATENCY_MS:g}",
            paper.LATENCY_MS,
        ),
        finding(
            "latency over best effort, remote",
            "remote_ms",
            later,
            f"about {paper.LATENCY_MS:g}",
            paper.LATENCY_MS,
        ),
        Finding("overhead", "a bare file synced at that pace: one sync", sync.median_ms, later),
        Finding("overhead", "events lost", found.lost, "", "none", not found.lost),
        Finding("overhead", "doubled or out of order", found.amiss, "", "none", not found.amiss),
    ]


# ── faults ───────────────────────────────────────────────────────────────────────────────


def peak_ms(notes: Iterable[Arrival]) -> float:
    return max((note.latency_s * 1e3 for note in notes), default=0.0)


def late_until_s(notes: Iterable[Arrival]) -> float | None:
    """When the last of those arrived that were delayed."""
    late = [note.sent + note.latency_s for note in notes if note.latency_s * 1e3 > LATE_MS]
    return max(late, default=None)


def consolidation(record: Record, cell: str) -> float | None:
    """What a cell asked for upstream, of what was asked of it downstream."""
    members = paper.CELLS[cell]
    asked = total_ms(record.nacks, "received", members, paper.BELOW[cell])
    passed_on = total_ms(record.nacks, "sent", members, (paper.PUBLISHER_BROKER,))
    return passed_on / asked if asked else None


def of_fault(record: Record) -> list[Finding]:
    """What the paper tells of this fault; and that nothing was lost, which it takes for granted."""
    findings = _OF_FAULT[record.fault](record)
    account = record.account
    wrong = {"lost": account.lost, "doubled": account.doubled, "out of order": account.disordered}
    return findings + [
        Finding(record.fault, f"events {what}", count, "", "none", not count)
        for what, count in wrong.items()
    ]


def _recovery(record: Record, since: str, subscriber: str = "s1") -> Finding:
    until_s = late_until_s(record.arrivals[subscriber])
    victim = "the link" if record.fault == "link" else record.victim
    verb = {"fail": "failed", "heal": "was back"}[since]
    took_s = max(0.0, until_s - record.mark(since)) if until_s is not None else 0.0
    name = f"all that was delayed is at {subscriber}, after {victim} {verb}"
    holds = took_s <= RAPID_S if since == "fail" else None
    return Finding(record.fault, name, took_s, "s", "rapid", holds)


def _peak(record: Record, subscriber: str, said: str) -> Finding:
    value = peak_ms(record.arrivals[subscriber])
    return Finding(record.fault, f"longest latency at {subscriber}", value, "ms", said)


def _nacked(record: Record, broker: str, said: str = "") -> Finding:
    value = total_ms(record.nacks, "sent", (broker,))
    return Finding(record.fault, f"nack range sent by {broker}", value, "ms", said)


def _consolidated(record: Record, cell: str, said: str = "") -> list[Finding]:
    share = consolidation(record, cell)
    if share is None:
        return []
    below = ", ".join(paper.BELOW[cell])
    name = f"{cell} asks p1, of what {below} ask it"
    best = 1 / len(paper.BELOW[cell])
    return [Finding(record.fault, name, share, "", said or f"{best:.2g} is perfect")]


def _of_link(record: Record) -> list[Finding]:
    return [
        _peak(record, "s1", f"{paper.LINK_PEAK_MS:,.0f}, as the stall"),
        _peak(record, "s2", "unaffected"),
        _recovery(record, "fail"),
        _nacked(record, "s1"),
    ]


def _of_broker(record: Record) -> list[Finding]:
    said = f"{paper.CRASH_NACKED_MS:,.0f} for each pubend through it"
    return [
        _peak(record, "s1", "as the stall"),
        _recovery(record, "fail"),
        _nacked(record, "s1", said),
        _nacked(record, "s2", said),
        *_consolidated(record, "IB1", f"almost perfect: {paper.CONSOLIDATION:g}"),
    ]


def _of_publisher(record: Record) -> list[Finding]:
    return [
        _peak(record, "s1", "as long as p1 was gone"),
        _recovery(record, "heal"),
        _nacked(record, "s1"),
        *_consolidated(record, "IB1"),
        *_consolidated(record, "IB2"),
    ]


_OF_FAULT = {"link": _of_link, "broker": _of_broker, "publisher": _of_publisher}


# ── plain values ─────────────────────────────────────────────────────────────────────────


def fault_json(record: Record) -> dict[str, Any]:
    """Without the single events."""
    return {
        "victim": record.victim,
        "schedule_s": asdict(record.schedule),
        "marks": [{"at_s": round(mark.at_s, 3), "what": mark.what} for mark in record.marks],
        "pubends": len(pubends(record)),
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


def series_json(record: Record) -> dict[str, Any]:
    """Every event and every nack: what the plots are drawn from."""
    return {
        "latency": {
            name: [
                [round(note.sent, 4), round(note.latency_s * 1e3, 3), note.publisher]
                for note in notes
            ]
            for name, notes in record.arrivals.items()
        },
        "latency_columns": ["sent_s", "latency_ms", "publisher"],
        "nacks": [
            [round(each.at, 4), each.broker, each.way, each.neighbour, round(each.range_ms, 3)]
            for each in record.nacks
        ],
        "nacks_columns": ["at_s", "broker", "way", "neighbour", "range_ms"],
    }
