"""Pictures of a report. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from motet.errors import UnavailableError
from motet.spark.insight.report import Report

BLUE, PALE, ORANGE, INK = "#1f5fa8", "#b8cfe8", "#d9731a", "#333333"
DPI: Final = 110
MOST_STEPS: Final = 25
MOST_AGENTS: Final = 30
UNITS: Final = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def check() -> None:
    """Raise if there can be no pictures; better before the work than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnavailableError(
            "pictures need matplotlib, which is not installed: pip install 'motet[plots]', "
            "or leave them out with --no-plots"
        ) from None


def draw(report: Report, folder: Path) -> list[Path]:
    check()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    if report.steps:
        drawn.append(_save(_steps(report), folder / "steps.png"))
    if report.handovers:
        drawn.append(_save(_handovers(report), folder / "handovers.png"))
    if report.outliers:
        drawn.append(_save(_outliers(report), folder / "outliers.png"))
    return drawn


def unit_of(seconds: float) -> tuple[float, str]:
    """The largest unit in which this is at least one."""
    return next((each for each in UNITS if seconds >= each[0]), UNITS[-1])


def _blank(width_in: float, height_in: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.tick_params(labelsize=8, colors=INK)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure, axis


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path)
    return path


def _steps(report: Report) -> Any:
    """Median and 95th percentile of each step: waiting and handling if they are known, else both
    together."""
    rows = [row for row in report.steps if row["sojourn_p50_s"] is not None]
    rows = sorted(rows, key=lambda row: -row["visits"])[:MOST_STEPS][::-1]
    figure, axis = _blank(9.0, 1.6 + 0.28 * max(len(rows), 3))
    size, unit = unit_of(max((row["sojourn_p50_s"] for row in rows), default=1.0))
    places = range(len(rows))
    axis.barh(
        places, [row["sojourn_p95_s"] / size for row in rows], color=PALE, label="95th percentile"
    )
    if all(row["handling_p50_s"] is not None for row in rows):
        waits = [(row["waiting_p50_s"] or 0.0) / size for row in rows]
        axis.barh(places, waits, color=BLUE, height=0.5, label="median waiting")
        handles = [row["handling_p50_s"] / size for row in rows]
        axis.barh(places, handles, left=waits, color=ORANGE, height=0.5, label="median handling")
    else:
        halves = [row["sojourn_p50_s"] / size for row in rows]
        axis.barh(places, halves, color=BLUE, height=0.5, label="median")
    several = len({row["process"] for row in rows}) > 1
    names = [f"{row['process']} {row['step']}" if several else row["step"] for row in rows]
    axis.set_yticks(
        list(places),
        [f"{name}  ({row['visits']:,})" for name, row in zip(names, rows, strict=True)],
    )
    axis.set_xscale("symlog", linthresh=1.0)
    axis.set_xlabel(f"{unit} from the end of the step before to the end of this one", fontsize=9)
    axis.set_title("How long steps take", fontsize=11, loc="left", color=INK)
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def _handovers(report: Report) -> Any:
    """Who hands over to whom: the busiest agents, by how often."""
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


def _outliers(report: Report) -> Any:
    """When something took much longer than it used to, and how much."""
    figure, axis = _blank(9.0, 3.6)
    ends = [row["end"] for row in report.outliers]
    axis.scatter(ends, [row["times"] for row in report.outliers], s=12, color=ORANGE, alpha=0.7)
    axis.set_yscale("log")
    axis.set_ylabel("times the usual", fontsize=9)
    axis.grid(visible=True, color="#e3e3e3", linewidth=0.6)
    axis.set_axisbelow(True)
    count = f"{report.outlier_count:,}"
    axis.set_title(f"Steps that took unusually long: {count}", fontsize=11, loc="left", color=INK)
    for label in axis.get_xticklabels():
        label.set_rotation(20)
    return figure
