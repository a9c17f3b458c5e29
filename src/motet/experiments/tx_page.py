"""The evaluation of transactions as a page to read: tables beside the paper's, and the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from motet.experiments import page, tx_paper
from motet.experiments.dispatching import APART
from motet.experiments.transactions import Report

TITLES = {
    "base": "Base comparison",
    "overlay": "Size of the overlay",
    "concurrency": "Transactions at a time",
    "clients": "Number of clients",
    "impact": "Regular events beside transactions",
    "all": "All of them",
}
VARIED = {"base": "brokers", "overlay": "brokers", "concurrency": "at a time", "clients": "clients"}
COLUMNS = ("mean, ms", "p50", "p99", "per s", "wait, ms", "astray", "aborted")


def to_page(report: Report, pictures: Iterable[Path] = ()) -> str:
    """Markdown; the pictures must stand beside it."""
    drawn = [path.name for path in pictures]
    lines = ["# Transactions of several clients, measured", "", _setting(report), ""]
    head = ["figure", "here", "unit", "the paper", "holds"]
    for part in (*report.plan.parts, "all"):
        found = [each for each in report.findings if each.part == part]
        if not found:
            continue
        lines += [f"## {TITLES[part]}", ""]
        if part == "impact":
            lines += [_how_impact(report), ""]
        lines += [*_table(head, page.finding_rows(found)), ""]
        lines += [f"![{part}]({name})\n" for name in drawn if name.startswith(part)]
        lines += _rows(report, part)
    return "\n".join(lines) + "\n"


def _setting(report: Report) -> str:
    plan, about = report.plan, report.machine
    settings = "; ".join(setting.name for setting in plan.settings)
    load = "/".join(str(each) for each in about["load_average"])
    return (
        f"The dispatching scenario of paper 1: E begins, D dispatches, two agents in turn; four "
        f"clients, five operations. {plan.transactions} transactions for every row (the paper: "
        f"{tx_paper.TRANSACTIONS:,}). Settings: {settings}; the delay is on every link, also those "
        f"of clients, and the same for all approaches. The wait of BL-WAIT was found by halving, "
        f"with {plan.wait_runs} runs per step, and rounded up to the paper's steps of 50 ms. "
        f"Latencies are means, as the paper's. {about['cpu']}, {about['cores']} cores, load "
        f"{load}; {report.took_s:.0f} s."
    )


def _how_impact(report: Report) -> str:
    return (
        f"One stream of exactly-once events, as fast as it goes, through all brokers. "
        f"{tx_paper.INSTANCES_PER_BURST} instances are dispatched after every "
        f"{tx_paper.EVENTS_PER_BURST:,} events, as in the paper, in {report.plan.rounds} slices of "
        f"time for every approach; each slice is compared with those just before and after it, "
        f"without dispatching. Drops are medians. All processes share {report.machine['cores']} "
        f"cores, so whatever anybody computes is a drop, also what the clients that dispatch do "
        f"themselves; “{APART}” is the same five operations by the same clients, not bound "
        f"together. In the paper every broker and every client had two cores of its own."
    )


def _rows(report: Report, part: str) -> list[str]:
    rows = [row for row in report.rows if row.part == part]
    if not rows:
        return []
    head = ["setting", VARIED[part], "approach", *COLUMNS]
    body = [
        [
            row.setting,
            str(row.at),
            row.approach,
            f"{row.mean_ms:.3g}",
            f"{row.p50_ms:.3g}",
            f"{row.p99_ms:.3g}",
            f"{row.per_s:.3g}",
            f"{row.wait_ms:.3g}" if row.wait_ms else "–",
            str(row.wrong),
            str(row.aborted),
        ]
        for row in rows
    ]
    return [*_table(head, body), ""]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
