"""The plots of the experiments, like figures 4 to 8 of paper 5, and 5 to 9 of paper 1; those of
clients that move are in `mobility_plots`, of one order in `ordering_plots`. They need matplotlib.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from motet.pictures import BLUE, GREEN, GREY, INK, ORANGE, check, save
from motet_labs.experiments import mobility_plots, ordering_plots, paper5
from motet_labs.experiments.axes import blank, entitle, from_zero, legend, pair
from motet_labs.experiments.dispatch import APPROACHES
from motet_labs.experiments.exactly_once import ExactlyOnceReport
from motet_labs.experiments.faults import FaultRecord
from motet_labs.experiments.mobility_report import MobilityReport
from motet_labs.experiments.ordering_report import OrderingReport
from motet_labs.experiments.overhead import Overhead
from motet_labs.experiments.regular import Impact
from motet_labs.experiments.transactions import TITLES, VARIED, ApproachRow, TransactionsReport

Report = ExactlyOnceReport | TransactionsReport | MobilityReport | OrderingReport


def draw(report: Report, directory: Path) -> list[Path]:
    """One picture per part, or per part and setting; returns their files."""
    check()
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(report, TransactionsReport):
        drawn = _of_transactions(report)
    elif isinstance(report, MobilityReport):
        drawn = mobility_plots.of(report.rows, report.points)
    elif isinstance(report, OrderingReport):
        drawn = ordering_plots.of(report.sizes, report.runs, report.rows)
    else:
        drawn = {} if report.overhead is None else {"overhead": _overhead(report.overhead)}
        drawn |= {record.fault: _fault(record) for record in report.records}
    return [save(figure, directory / f"{name}.png") for name, figure in drawn.items()]


# ── exactly once ─────────────────────────────────────────────────────────────────────────


def _overhead(found: Overhead) -> Any:
    rate = f"{found.effort.per_s:,} events/s of {paper5.OVERHEAD_BYTES} bytes"
    each = f"{paper5.SUBSCRIBER_PER_S}/s per subscriber"
    title = f"Exactly once against best effort: {rate}, {each}"
    figure, cpu, latency = pair(title, "CPU, % of one core", "median latency, ms")
    counts = [row.subscribers for row in found.rows]

    lines = (
        (cpu, "publishers_cpu_points", BLUE, "publishers' broker"),
        (cpu, "subscribers_cpu_points", ORANGE, "subscribers' broker"),
        (latency, "local_ms", BLUE, "local"),
        (latency, "remote_ms", ORANGE, "remote"),
    )
    for mode, style in (("exactly_once", "o-"), ("best_effort", "s--")):
        for axis, what, color, label in lines:
            values = [row.modes[mode][what] for row in found.rows]
            label = f"{label}, {mode.replace('_', ' ')}"
            axis.plot(counts, values, style, color=color, markersize=4, label=label)
    for axis in (cpu, latency):
        from_zero(axis, "subscribers")
        axis.margins(y=0.25)
        axis.legend(fontsize=7, frameon=False, loc="upper left")
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * 1.35)  # room for the legend
    return figure


FAULT_TITLES = {
    "link": "Link {}–s1 stalls, fails and recovers",
    "broker": "Broker {} stalls, crashes and restarts",
    "publisher": "The publishers' broker {} stalls, crashes and restarts",
}
SHOWN = {"link": ("s1", "s2"), "broker": ("s1", "s3"), "publisher": ("s1",)}
"""Whose latency is shown: a subscriber behind the victim, and one that is not."""


def _fault(record: FaultRecord) -> Any:
    shown = SHOWN[record.fault]
    figure, axes = blank(len(shown) + 1)
    for axis, name in zip(axes[:, 0], shown, strict=False):
        notes = record.arrivals[name]
        latencies = [note.latency_s * 1e3 for note in notes]
        axis.plot([note.sent for note in notes], latencies, ".", color=BLUE, markersize=2.5)
        entitle(axis, f"latency at {name}, ms")
        axis.set_ylim(0, max(max(latencies, default=1.0) * 1.15, 100))
    _nacks(axes[-1, 0], record)
    axes[-1, 0].set_xlabel("time of sending, s", fontsize=8, color=INK)
    axes[-1, 0].set_xlim(0, _end_s(record))
    for axis in axes[:, 0]:
        _shade(axis, record)
    figure.suptitle(FAULT_TITLES[record.fault].format(record.victim), fontsize=10, color=INK)
    return figure


def _end_s(record: FaultRecord) -> float:
    """Until everything was sent and all nacks were sent."""
    last_nack_s = max((each.at for each in record.nacks), default=0.0)
    return max(record.schedule.total_s, last_nack_s + record.schedule.total_s / 50)


def _nacks(axis: Any, record: FaultRecord) -> None:
    """Every point is one nack; their ranges add up."""
    cell, upstream = paper5.CELLS["IB1"], paper5.PUBLISHER_BROKER
    for label, brokers, color, marker in (
        ("s1", ("s1",), BLUE, "o"),
        ("s2", ("s2",), ORANGE, "s"),
        (f"IB1 to {upstream}", cell, GREEN, "^"),
    ):
        sent = [each for each in record.nacks if each.way == "sent" and each.broker in brokers]
        points = [each for each in sent if brokers != cell or each.neighbour == upstream]
        times = [each.at for each in points]
        sums = list(accumulate(each.range_ms for each in points))
        if points:
            steps = {"drawstyle": "steps-post", "linewidth": 1, "alpha": 0.7}
            ends = [0.0, *times, _end_s(record)], [0.0, *sums, sums[-1]]
            axis.plot(*ends, color=color, **steps)
            label = f"{label}: {len(points)} nack{'s' if len(points) > 1 else ''}"
            hollow = {"markersize": 6, "markerfacecolor": "none", "color": color}
            axis.plot(times, sums, marker, label=label, **hollow)
    entitle(axis, "nack range sent, ms, cumulative")
    if axis.lines:
        axis.set_ylim(0, axis.get_ylim()[1] * 1.25)
        axis.legend(fontsize=7, frameon=False, loc="center left")
    else:
        axis.set_ylim(0, 1)


def _shade(axis: Any, record: FaultRecord) -> None:
    stall, fail, heal = (record.marks[what] for what in ("stall", "fail", "heal"))
    axis.axvspan(stall, fail, color="#f4c542", alpha=0.25, linewidth=0)
    axis.axvspan(fail, heal, color="#d94f4f", alpha=0.13, linewidth=0)
    top = axis.get_ylim()[1]
    for begin, text in ((stall, "stalled"), (fail, "down"), (heal, "back")):
        axis.text(begin, top, f" {text}", fontsize=7, color=GREY, va="top")


# ── transactions ──────────────────────────────────────────────────────────────────────────

COLORS = dict(zip(APPROACHES, (GREY, BLUE, ORANGE, GREEN), strict=True))
MARKERS = dict(zip(APPROACHES, ("s", "o", "^", "v"), strict=True))
PALE = "#c9c9c9"
PLOT_TITLES = {"base": ", 3 brokers", "concurrency": ", of one coordinator"}
"""Suffixes that pictures add to the titles of the page."""


def _of_transactions(report: TransactionsReport) -> dict[str, Any]:
    drawn = {}
    for part in report.plan.parts:
        for at, setting in enumerate(report.plan.settings):
            rows = [row for row in report.rows if (row.part, row.setting) == (part, setting.name)]
            if rows:
                name = part if at == 0 else f"{part}-{at + 1}"
                drawn[name] = _approaches(part, setting.name, rows)
    return drawn if report.impact is None else drawn | {"impact": _impact(report.impact)}


def _approaches(part: str, setting: str, rows: list[ApproachRow]) -> Any:
    title = TITLES[part] + PLOT_TITLES.get(part, "")
    how = (f"{title} ({setting})", "mean latency, ms", "transactions per second")
    figure, latency, rate = pair(*how)
    if part == "base":
        _bars(rows, latency, rate)
    else:
        _lines(rows, latency, rate, VARIED[part])
        legend(figure, rate)
    return figure


def _bars(rows: list[ApproachRow], latency: Any, rate: Any) -> None:
    known = {row.approach: row for row in reversed(rows)}
    names = [approach for approach in APPROACHES if approach in known]
    colors = [COLORS[name] for name in names]
    means = [known[name].mean_ms for name in names]
    rates = [known[name].per_s for name in names]
    for axis, values in ((latency, means), (rate, rates)):
        drawn = axis.bar(names, values, color=colors)
        axis.bar_label(drawn, [f"{value:.3g}" for value in values], fontsize=8, color=INK)


def _lines(rows: list[ApproachRow], latency: Any, rate: Any, across: str) -> None:
    for approach in APPROACHES:
        some = sorted((row for row in rows if row.approach == approach), key=lambda row: row.at)
        style = {"color": COLORS[approach], "marker": MARKERS[approach], "label": approach}
        counts = [row.at for row in some]
        latency.plot(counts, [row.mean_ms for row in some], **style)
        rate.plot(counts, [row.per_s for row in some], **style)
    for axis in (latency, rate):
        axis.set_xticks(sorted({row.at for row in rows}))
        from_zero(axis, across)


def _impact(impact: Impact) -> Any:
    """The drop of the rate, and its course while instances are dispatched, as in figure 9."""
    title = "Regular events beside transactions, 3 brokers"
    shown = ("drop of the rate, % (lines: quartiles)", "1,000 events per second")
    figure, drop, course = pair(title, *shown)
    names = impact.approaches
    dips = [impact.dip(name) for name in names]
    colors = [COLORS.get(name, PALE) for name in names]
    middles = [dip.middle for dip in dips]
    reach = ([dip.middle - dip.low for dip in dips], [dip.high - dip.middle for dip in dips])
    lines = {"ecolor": INK, "capsize": 3, "error_kw": {"elinewidth": 0.8}}
    labels = [name.replace(" ", "\n") for name in names]
    drop.bar(labels, middles, color=colors, yerr=reach, **lines)
    drop.axhline(0, color=INK, linewidth=0.6)
    for name in ("", *names):
        some = impact.course(name)
        style = {"color": COLORS.get(name, PALE), "marker": MARKERS.get(name, ""), "markersize": 3}
        if not name:
            style = {"color": INK, "linestyle": "--"}
        times, rates = [at_s for at_s, _ in some], [per_s / 1e3 for _, per_s in some]
        course.plot(times, rates, label=name or "alone", linewidth=1, **style)
    for at_s in impact.bursts_s:
        course.axvline(at_s, color=INK, linewidth=0.6, linestyle=":")
    course.set_xlabel("s; dotted: 4 instances are dispatched", fontsize=8, color=INK)
    course.set_ylim(bottom=0)
    legend(figure, course)
    return figure
