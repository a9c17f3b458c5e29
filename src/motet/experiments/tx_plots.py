"""The pictures of the evaluation of transactions, like figures 5 to 9 of paper 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from motet.experiments.dispatching import APPROACHES
from motet.experiments.plots import WIDTH_IN, blank
from motet.experiments.regular import Impact
from motet.experiments.transactions import Report
from motet.experiments.tx_findings import Row
from motet.pictures import BLUE, GREEN, GREY, INK, ORANGE, check

COLORS = dict(zip(APPROACHES, (GREY, BLUE, ORANGE, GREEN), strict=True))
MARKERS = dict(zip(APPROACHES, ("s", "o", "^", "v"), strict=True))
PALE = "#c9c9c9"
TITLES = {
    "overlay": ("Size of the overlay", "brokers"),
    "concurrency": ("Transactions at a time, of one coordinator", "at a time"),
    "clients": ("Number of clients", "clients"),
}


def draw(report: Report, directory: Path) -> list[Path]:
    """One picture for each part and setting; their files."""
    check()
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for part in report.plan.parts:
        for at, setting in enumerate(report.plan.settings):
            rows = [row for row in report.rows if (row.part, row.setting) == (part, setting.name)]
            if not rows:
                continue
            figure = _bars(rows) if part == "base" else _lines(part, rows)
            figure.suptitle(_title(part, setting.name), fontsize=10, color=INK)
            path = directory / f"{part}{'' if at == 0 else f'-{at + 1}'}.png"
            figure.savefig(path)
            drawn.append(path)
    if report.impact is not None:
        path = directory / "impact.png"
        _impact(report.impact).savefig(path)
        drawn.append(path)
    return drawn


def _title(part: str, setting: str) -> str:
    name = "Base comparison, 3 brokers" if part == "base" else TITLES[part][0]
    return f"{name} ({setting})"


def _pair() -> tuple[Any, Any, Any]:
    figure, axes = blank(1, 2)
    figure.set_size_inches(WIDTH_IN, 3.6)
    latency, rate = axes[0]
    latency.set_title("mean latency, ms", fontsize=9, loc="left", color=INK)
    rate.set_title("transactions per second", fontsize=9, loc="left", color=INK)
    return figure, latency, rate


def _legend(figure: Any, axis: Any) -> None:
    """Below the picture, where no line is."""
    lines, names = axis.get_legend_handles_labels()
    place = {"loc": "outside lower center", "ncols": len(names)}
    figure.legend(lines, names, fontsize=8, frameon=False, labelcolor=INK, **place)


def _bars(rows: list[Row]) -> Any:
    figure, latency, rate = _pair()
    known = {row.approach: row for row in reversed(rows)}
    names = [approach for approach in APPROACHES if approach in known]
    colors = [COLORS[name] for name in names]
    means = [known[name].mean_ms for name in names]
    rates = [known[name].per_s for name in names]
    for axis, values in ((latency, means), (rate, rates)):
        drawn = axis.bar(names, values, color=colors)
        axis.bar_label(drawn, [f"{value:.3g}" for value in values], fontsize=8, color=INK)
    return figure


def _lines(part: str, rows: list[Row]) -> Any:
    figure, latency, rate = _pair()
    for approach in APPROACHES:
        some = sorted((row for row in rows if row.approach == approach), key=lambda row: row.at)
        style = {"color": COLORS[approach], "marker": MARKERS[approach], "label": approach}
        counts = [row.at for row in some]
        latency.plot(counts, [row.mean_ms for row in some], **style)
        rate.plot(counts, [row.per_s for row in some], **style)
    for axis in (latency, rate):
        axis.set_xlabel(TITLES[part][1], fontsize=8, color=INK)
        axis.set_xticks(sorted({row.at for row in rows}))
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    _legend(figure, rate)
    return figure


def _impact(impact: Impact) -> Any:
    """How much the rate drops; and its course while instances are dispatched, as in figure 9."""
    figure, axes = blank(1, 2)
    figure.set_size_inches(WIDTH_IN, 3.6)
    figure.suptitle("Regular events beside transactions, 3 brokers", fontsize=10, color=INK)
    drop, course = axes[0]
    names = impact.approaches
    dips = [impact.dip(name) for name in names]
    colors = [COLORS.get(name, PALE) for name in names]
    drop.bar(
        [name.replace(" ", "\n") for name in names], [dip.middle for dip in dips], color=colors
    )
    reach = ([dip.middle - dip.low for dip in dips], [dip.high - dip.middle for dip in dips])
    drop.errorbar(range(len(names)), [dip.middle for dip in dips], reach,
                  fmt="none", ecolor=INK, elinewidth=0.8, capsize=3)  # fmt: skip
    drop.axhline(0, color=INK, linewidth=0.6)
    drop.set_title("drop of the rate, % (lines: quartiles)", fontsize=9, loc="left", color=INK)
    for name in ("", *names):
        some = impact.course(name)
        style = {"color": COLORS.get(name, PALE), "marker": MARKERS.get(name, ""), "markersize": 3}
        if not name:
            style = {"color": INK, "linestyle": "--"}
        times, rates = [at_s for at_s, _ in some], [per_s / 1e3 for _, per_s in some]
        course.plot(times, rates, label=name or "alone", linewidth=1, **style)
    for at_s in impact.bursts_s:
        course.axvline(at_s, color=INK, linewidth=0.6, linestyle=":")
    course.set_title("1,000 events per second", fontsize=9, loc="left", color=INK)
    course.set_xlabel("s; dotted: 4 instances are dispatched", fontsize=8, color=INK)
    course.set_ylim(bottom=0)
    _legend(figure, course)
    return figure
