"""Pictures of a report. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from motet.pictures import BLUE, INK, ORANGE, check, rule, save, sheet
from motet.spark.insight.report import InsightReport

PALE: Final = "#b8cfe8"
MOST_STEPS: Final = 25
MOST_AGENTS: Final = 30
LEAST_S: Final = 1.0
"""Shorter times are drawn at this value."""
MARKS: Final = {
    1.0: "1 s", 10.0: "10 s", 60.0: "1 min", 600.0: "10 min", 3600.0: "1 h",
    86_400.0: "1 d", 604_800.0: "1 w", 2_592_000.0: "30 d", 31_536_000.0: "1 y",
}  # fmt: skip


def draw(report: InsightReport, folder: Path) -> list[Path]:
    check()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    if report.steps:
        drawn.append(save(_steps(report), folder / "steps.png"))
    if report.handovers:
        drawn.append(save(_handovers(report), folder / "handovers.png"))
    if report.outliers:
        drawn.append(save(_outliers(report), folder / "outliers.png"))
    return drawn


def _blank(width_in: float, height_in: float) -> tuple[Any, Any]:
    figure, axes = sheet(width_in, height_in)
    return figure, axes[0, 0]


def _steps(report: InsightReport) -> Any:
    """Median and 95th percentile of each step: waiting and handling if known, otherwise their sum.
    The scale is logarithmic, from seconds to months."""
    rows = [row for row in report.steps if row["sojourn_p50_s"] is not None]
    rows = sorted(rows, key=lambda row: -row["visits"])[:MOST_STEPS][::-1]
    figure, axis = _blank(9.0, 1.6 + 0.28 * max(len(rows), 3))
    places = list(range(len(rows)))

    def times(name: str) -> list[float]:
        return [max(row[name] or 0.0, LEAST_S) for row in rows]

    halves, most = times("sojourn_p50_s"), times("sojourn_p95_s")
    axis.hlines(places, halves, most, color=PALE, linewidth=6, label="median to 95th percentile")
    if rows and all(row["handling_p50_s"] is not None for row in rows):
        waits = [each if row["waiting_p50_s"] is not None else None
                 for row, each in zip(rows, times("waiting_p50_s"), strict=True)]  # fmt: skip
        axis.plot(waits, places, "o", color=BLUE, markersize=5, label="median waiting")
        handles = times("handling_p50_s")
        axis.plot(handles, places, "D", color=ORANGE, markersize=4, label="median handling")
    else:
        axis.plot(halves, places, "o", color=BLUE, markersize=5, label="median")
    several = len({row["process"] for row in rows}) > 1
    names = [f"{row['process']} {row['step']}" if several else row["step"] for row in rows]
    axis.set_yticks(
        places, [f"{name}  ({row['visits']:,})" for name, row in zip(names, rows, strict=True)]
    )
    axis.set_xscale("log")
    top = 2.0 * max(most, default=LEAST_S)
    axis.set_xlim(LEAST_S * 0.8, top)
    shown = {at: text for at, text in MARKS.items() if at <= top}
    axis.set_xticks(list(shown), list(shown.values()))
    axis.set_xticks([], minor=True)
    rule(axis, "x")
    axis.set_xlabel("from the end of the step before to the end of this one", fontsize=9)
    figure.suptitle("How long steps take", fontsize=11, x=0.01, ha="left", color=INK)
    figure.legend(*axis.get_legend_handles_labels(), fontsize=8, frameon=False, ncols=3,
                  loc="upper right")  # fmt: skip
    return figure


def _handovers(report: InsightReport) -> Any:
    """Hand-overs between the busiest agents, by frequency."""
    import numpy

    busy: dict[str, int] = {}
    for row in report.handovers:
        for name in (row["giver"], row["taker"]):
            busy[name] = busy.get(name, 0) + row["count"]
    names = sorted(busy, key=lambda name: (-busy[name], name))[:MOST_AGENTS]
    at = {name: number for number, name in enumerate(names)}
    counts = numpy.zeros((len(names), len(names)))
    for row in report.handovers:
        if row["giver"] in at and row["taker"] in at:
            counts[at[row["giver"]], at[row["taker"]]] = row["count"]
    side = 2.2 + 0.24 * max(len(names), 8)
    figure, axis = _blank(side + 0.8, side)
    shown = axis.imshow(numpy.log10(counts + 1), cmap="Blues", aspect="equal")
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_xlabel("taken by", fontsize=9)
    axis.set_ylabel("handed over by", fontsize=9)
    axis.set_title("Hand-overs between agents", fontsize=11, loc="left", color=INK)
    bar = figure.colorbar(shown, ax=axis, shrink=0.7)
    top = int(counts.max())
    ticks = [
        each for each in (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000) if each <= max(top, 1)
    ]
    bar.set_ticks(
        [float(numpy.log10(each + 1)) for each in ticks], labels=[f"{each:,}" for each in ticks]
    )
    bar.ax.tick_params(labelsize=8)
    return figure


def _outliers(report: InsightReport) -> Any:
    """When steps took much longer than usual, and how much."""
    figure, axis = _blank(9.0, 3.6)
    ends = [row["end"] for row in report.outliers]
    axis.scatter(ends, [row["times"] for row in report.outliers], s=12, color=ORANGE, alpha=0.7)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.set_ylabel("times the usual", fontsize=9)
    rule(axis)
    count = f"{report.outlier_count:,}"
    axis.set_title(f"Steps that took unusually long: {count}", fontsize=11, loc="left", color=INK)
    for label in axis.get_xticklabels():
        label.set_rotation(20)
    return figure
