"""The result of an experiment as a page to read: tables beside the paper's, and the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from motet.experiments import paper
from motet.experiments.exactly_once import Report
from motet.experiments.findings import Finding
from motet.experiments.overhead import Overhead

TITLES = {
    "overhead": "Exactly once against best effort",
    "link": "Link {}–s1 fails",
    "broker": "Broker {} crashes",
    "publisher": "The publishers' broker {} crashes",
}
"""With the victim, where there is one."""
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
    "**The machine was busy with other things, or with too much of this:** for some rows it had no "
    "time left. Latencies are then those of processes that wait for a core; repeat this on a "
    "machine that has nothing else to do."
)
VERDICTS = {True: "yes", False: "no", None: "–"}


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def overhead_rows(found: Overhead) -> list[list[str]]:
    """Per number of subscribers and kind of delivery: the columns above."""
    return [
        [
            f"{row.subscribers:,}",
            mode.replace("_", " "),
            *(f"{measured[what]:.3g}" for what in OVERHEAD_COLUMNS.values()),
        ]
        for row in found.rows
        for mode, measured in row.modes.items()
    ]


def finding_rows(found: Iterable[Finding]) -> list[list[str]]:
    return [
        [each.name, shown(each.value), each.unit, each.paper or "–", VERDICTS[each.holds]]
        for each in found
    ]


def page(report: Report, pictures: Iterable[Path] = ()) -> str:
    """Markdown; the pictures must stand beside it."""
    drawn = {path.stem: path.name for path in pictures}
    lines = ["# Exactly-once delivery, measured", "", _setting(report), ""]
    for part in report.plan.parts:
        title = _title(report, part)
        lines += [f"## {title}", ""]
        if part == "overhead" and report.overhead is not None:
            head = ["subscribers", "delivery", *OVERHEAD_COLUMNS]
            lines += [*_table(head, overhead_rows(report.overhead)), ""]
            if _busy(report.overhead):
                lines += [BUSY, ""]
        else:
            lines += [_schedule(report, part), ""]
        head = ["figure", "here", "unit", "the paper", "at least as good"]
        own = [each for each in report.findings if each.part == part]
        lines += [*_table(head, finding_rows(own)), ""]
        if part in drawn:
            lines += [f"![{title}]({drawn[part]})", ""]
    return "\n".join(lines)


def _busy(found: Overhead) -> bool:
    return any(
        measured["machine_idle_points"] < LEAST_IDLE_POINTS
        for row in found.rows
        for measured in row.modes.values()
    )


def _setting(report: Report) -> str:
    machine: dict[str, Any] = report.machine
    load = " / ".join(str(each) for each in machine.get("load_average", ()))
    return (
        f"Written by `motet experiment exactly-once{' --short' if report.plan.short else ''}` on "
        f"{report.began:%Y-%m-%d}, in {report.took_s:.0f} s. The machine: {machine['cpu']}, "
        f"{machine['cores']} cores for all brokers and clients together; {machine['python']}, "
        f"{machine['loop']}; load average {load} before it began."
    )


def _title(report: Report, part: str) -> str:
    victims = [each.victim for each in report.records if each.fault == part]
    return TITLES[part].format(*victims)


def _schedule(report: Report, part: str) -> str:
    record = next(each for each in report.records if each.fault == part)
    schedule, account = record.schedule, record.account
    return (
        f"Well for {schedule.before_s:g} s, stalled for {schedule.stall_s:g} s, gone for "
        f"{schedule.gone_s:g} s, back for {schedule.after_s:g} s. {paper.PUBLISHERS} publishers "
        f"sent {account.published:,} events, {len(record.arrivals)} subscribers received "
        f"{account.delivered:,}."
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return [line(head), line("---" for _ in head), *map(line, rows)]
