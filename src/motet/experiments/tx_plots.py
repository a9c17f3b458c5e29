"""The pictures of the evaluation of transactions, like figures 5 to 9 of paper 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from motet.experiments.dispatching import APPROACHES
from motet.experiments.plots import BLUE, GREEN, GREY, INK, ORANGE, WIDTH_IN, blank, check
from motet.experiments.transactions import Report
from motet.experiments.tx_findings import Row, dips, middle_rates

COLORS = dict(zip(APPROACHES, (GREY, BLUE, ORANGE, GREEN), strict=True))
MARKERS = dict(zip(APPROACHES, ("s", "o", "^", "v"), strict=True))
TITLES = {
    "overlay": ("Size of the overlay", "brokers"),
    "concurrency": ("Transactions at a time, of one coordinator", "at a time"),
    "clients": ("Clients", "clients"),
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
    if report.impact:
        path = directory / "impact.png"
        _impact(report).savefig(path)
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


def _bars(rows: list[Row]) -> Any:
    figure, latency, rate = _pair()
    known = {row.approach: row for row in reversed(rows)}
    names = [approach for approach in APPROACHES if approach in known]
    colors = [COLORS[name] for name in names]
    latency.bar(names, [known[name].mean_ms for name in names], color=colors)
    rate.bar(names, [known[name].per_s for name in names], color=colors)
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
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    rate.legend(fontsize=7, frameon=False, loc="upper left")
    return figure


def _impact(report: Report) -> Any:
    figure, axes = blank(1)
    axis = axes[0, 0]
    found = dips(report.impact)
    rates = middle_rates(report.impact)
    places = range(len(found))
    alone = [rates[name, False] for name in found]
    beside = [rates[name, True] for name in found]
    axis.bar([at - 0.2 for at in places], alone, 0.4, color="#c9c9c9", label="alone")
    axis.bar([at + 0.2 for at in places], beside, 0.4, color=BLUE, label="beside transactions")
    axis.set_xticks(list(places), list(found))
    axis.set_title("regular events per second", fontsize=9, loc="left", color=INK)
    axis.set_ylim(0, max((*alone, *beside)) * 1.3)
    axis.legend(fontsize=7, frameon=False, loc="upper right")
    return figure
