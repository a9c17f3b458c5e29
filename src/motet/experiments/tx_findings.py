"""What the evaluation of transactions amounts to, beside what paper 1 says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from motet.experiments import tx_paper
from motet.experiments.dispatching import APPROACHES
from motet.experiments.findings import Finding
from motet.experiments.regular import Impact

DIP_PERCENT = 5.0
"""A drop of the regular rate that is smaller than this is none."""


@dataclass(frozen=True)
class Row:
    """One approach in one setting; `at` is what the experiment varies."""

    part: str
    setting: str
    at: int
    approach: str
    mean_ms: float
    p50_ms: float
    p99_ms: float
    per_s: float
    count: int
    wrong: int
    """Updates that went astray: only BL-WAIT may."""
    aborted: int
    wait_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return _rounded(asdict(self))


def _rounded(told: dict[str, Any]) -> dict[str, Any]:
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in told.items()
    }


def findings(rows: Sequence[Row], impact: Impact | None, setting: str) -> list[Finding]:
    """Of the first setting; the others are in the tables."""
    main = [row for row in rows if row.setting == setting]
    found = _of_base([row for row in main if row.part == "base"])
    found += _of_overlay([row for row in main if row.part == "overlay"])
    found += _of_growth("concurrency", "10 at a time", main, 1, 10)
    found += _of_growth("clients", "40 clients", main, 4, 40)
    found += _of_many([row for row in main if row.part == "clients"])
    found += _of_impact(impact)
    astray = sum(row.wrong for row in rows if row.approach != "BL-WAIT")
    ran = sum(row.count for row in rows if row.approach != "BL-WAIT")
    if rows:
        found.append(Finding("all", f"updates astray in {ran:,} transactions", astray, "", "none",
                             not astray))  # fmt: skip
    return found


def _by(rows: Iterable[Row]) -> dict[tuple[str, int], Row]:
    """The first one counts: that of BL-WAIT with the paper's steps."""
    known: dict[tuple[str, int], Row] = {}
    for row in rows:
        known.setdefault((row.approach, row.at), row)
    return known


def _of_base(rows: list[Row]) -> list[Finding]:
    if not rows:
        return []
    known = {row.approach: row for row in reversed(rows)}
    found = []
    for approach in APPROACHES:
        said = f"about {tx_paper.BASE_MS[approach]:g}"
        found.append(Finding("base", f"{approach}, latency", known[approach].mean_ms, "ms", said))
    for approach in APPROACHES:
        said = f"about {tx_paper.BASE_PER_S[approach]:.2g}"
        found.append(Finding("base", f"{approach}, one by one", known[approach].per_s, "/s", said))
    waits = [row for row in rows if row.approach == "BL-WAIT"]
    for row in waits:
        ratio = row.p50_ms / known["S-TX"].p50_ms  # what went astray would count as slow
        least = tx_paper.STATIC_AGAINST_WAIT
        first = row is waits[0]
        name = f"S-TX per BL-WAIT that waits {row.wait_ms:.3g} ms"
        name += ", by the paper's steps" if first else ", the least"
        said = f"about {least:g}" if first else ""
        found.append(Finding("base", name, ratio, "times", said, ratio >= least if first else None))
    return found


def _of_overlay(rows: list[Row]) -> list[Finding]:
    known, found = _by(rows), []
    for approach in APPROACHES:
        one, nine = known.get((approach, 1)), known.get((approach, 9))
        if one is None or nine is None:
            continue
        ratio, most = nine.mean_ms / one.mean_ms, tx_paper.OVERLAY_GROWTH.get(approach)
        said = f"about {most:g}" if most else ""
        name = f"{approach}, latency of 9 brokers per that of 1"
        holds = None if most is None else ratio <= most
        found.append(Finding("overlay", name, ratio, "times", said, holds))
    for (approach, count), ms in tx_paper.OVERLAY_MS.items():
        row = known.get((approach, count))
        if row is not None:
            name = f"{approach}, {count} broker{'s' if count > 1 else ''}"
            found.append(Finding("overlay", name, row.mean_ms, "ms", f"about {ms:g}"))
    return found


GROWTHS = {
    "concurrency": (tx_paper.THREADS_LATENCY, tx_paper.THREADS_RATE),
    "clients": (tx_paper.CLIENTS_LATENCY, tx_paper.CLIENTS_RATE),
}


def _of_growth(part: str, what: str, rows: list[Row], low: int, high: int) -> list[Finding]:
    known, found = _by(row for row in rows if row.part == part), []
    latencies, rates = GROWTHS[part]
    for approach in APPROACHES:
        few, many = known.get((approach, low)), known.get((approach, high))
        if few is None or many is None:
            continue
        longer, faster = many.mean_ms / few.mean_ms, many.per_s / few.per_s
        said, least = latencies.get(approach), rates.get(approach)
        name = f"{approach}, {what}: latency"
        text = f"about {said:g}" if said else ""
        holds = None if said is None else longer <= said
        found.append(Finding(part, name, longer, "times", text, holds))
        name = f"{approach}, {what}: throughput"
        text = f"about {least:g}" if least else ""
        holds = None if least is None else faster >= least
        found.append(Finding(part, name, faster, "times", text, holds))
    return found


def _of_many(rows: list[Row]) -> list[Finding]:
    known = _by(rows)
    half, all_of_them = known.get(("D-TX", 20)), known.get(("D-TX", 40))
    if half is None or all_of_them is None:
        return []
    ratio = all_of_them.per_s / half.per_s
    name = "D-TX, throughput of 40 clients per that of 20"
    return [Finding("clients", name, ratio, "times", "falls", ratio >= 1)]


def _of_impact(impact: Impact | None) -> list[Finding]:
    if impact is None:
        return []
    rate = impact.rate()
    found = [Finding("impact", "regular events, nothing beside them", rate.middle, "/s")]
    for approach in impact.approaches:
        dip, count = impact.dip(approach), impact.dispatched(approach)
        name = f"drop of the regular rate beside {approach}: {count} instances"
        name += f", quartiles {dip.low:.2g} to {dip.high:.2g}"
        holds = dip.middle <= DIP_PERCENT if approach == "S-TX" else None
        said = tx_paper.IMPACT.get(approach, "")
        found.append(Finding("impact", name, dip.middle, "%", said, holds))
    for approach in impact.approaches:
        name = f"the same beside {approach}, of events per CPU second"
        found.append(Finding("impact", name, impact.dip_by_cpu(approach).middle, "%"))
    wrong = impact.lost + impact.disordered + impact.doubled
    name = "regular events lost, doubled or out of order"
    return [*found, Finding("impact", name, wrong, "", holds=not wrong)]
