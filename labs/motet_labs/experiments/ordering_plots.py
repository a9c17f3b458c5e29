"""The plots of the experiment with one order across topics, like figures 7 to 14 of paper 4.

    python -m motet_labs.experiments.ordering_plots DIR

draws them again, and writes the page again, from the `ordering.json` in that folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from motet.pictures import BLUE, GREEN, GREY, INK, ORANGE, save
from motet_labs.experiments import paper4
from motet_labs.experiments.axes import blank, entitle, from_zero, legend, pair
from motet_labs.experiments.ordering_plan import PLACEMENT, RATES, SUBSCRIPTIONS
from motet_labs.experiments.ordering_report import (
    BY_NUMBER,
    PLANNED,
    LineRow,
    OrderingReport,
    RunsRow,
)
from motet_labs.experiments.stamp_sizes import SizeRow

SHAPE_COLORS: Final = dict(zip(paper4.SHAPES, (BLUE, ORANGE), strict=True))
MODE_STYLES: Final = {"pairs": "o-", "causal": "s--"}
SITE_COLORS: Final = (GREEN, BLUE, ORANGE, "#3fa7a3", "#8a4f9e")
SITE_MARKERS: Final = "os^vD"
VIEWS: Final[dict[str, Callable[[LineRow], float]]] = {
    "measured": lambda row: row.mean_ms,
    "virtual time": lambda row: row.virtual_ms,
    "floor": lambda row: row.floor_ms,
}
VIEW_STYLES: Final = {
    "measured": {"linestyle": "-", "marker": "o"},
    "virtual time": {"linestyle": "--", "marker": "x"},
    "floor": {"linestyle": ":", "marker": ""},
}
HEADROOM: Final = 1.12


def of(
    sizes: Sequence[SizeRow], runs: Sequence[RunsRow], rows: Sequence[LineRow]
) -> dict[str, Any]:
    """By the names of their files."""
    drawn: dict[str, Any] = {}
    if sizes:
        drawn |= {"sizes": _sizes(sizes), "sizes-2": _sent(sizes)}
    if runs:
        drawn["published"] = _published(runs)
    by_part = {part: [row for row in rows if row.part == part] for part in
               (RATES, SUBSCRIPTIONS, PLACEMENT)}  # fmt: skip
    if some := by_part[RATES]:
        drawn["rates"] = _latency(some, "Mean latency of a timestamp", "events per second", _rate)
        drawn["rates-2"] = _throughput(some, "events per second", _rate)
        drawn["rates-3"] = _outgoing(some)
    if some := by_part[SUBSCRIPTIONS]:
        across = "subscribed topics, thousands"
        title = f"Mean latency of a timestamp, {some[0].per_s:,} events/s"
        drawn["subscriptions"] = _latency(some, title, across, _thousands)
        drawn["subscriptions-2"] = _throughput(some, across, _thousands)
    if some := by_part[PLACEMENT]:
        drawn["placement"] = _placement(some)
    return drawn


def again(directory: Path) -> list[Path]:
    """Draw all, and write the page, from the figures of an earlier run; returns their files."""
    report = OrderingReport.load(directory)
    drawn = of(report.sizes, report.runs, report.rows)
    pictures = [save(figure, directory / f"{name}.png") for name, figure in drawn.items()]
    page = directory / "ordering.md"
    page.write_text(report.page(pictures), encoding="utf-8")
    return [page, *pictures]


def _rate(row: LineRow) -> float:
    return row.per_s


def _thousands(row: LineRow) -> float:
    return row.total / 1000


# ── sizes ────────────────────────────────────────────────────────────────────────────────


def _sizes(rows: Sequence[SizeRow]) -> Any:
    title = "Whole groups over topics, as in figures 7 and 8: entries of a timestamp"
    figure, left, right = pair(title, "mean", "standard deviation")
    _size_lines(rows, left, lambda row: row.topics)
    _size_lines(rows, right, lambda row: row.topics_deviation)
    legend(figure, left)
    return figure


def _sent(rows: Sequence[SizeRow]) -> Any:
    title = "Mean entries of a timestamp, over events"
    figure, left, right = pair(title, "whole groups, as published", "what ours really carry")
    _size_lines(rows, left, lambda row: row.events)
    _size_lines(rows, right, lambda row: row.sent)
    legend(figure, left)
    return figure


def _size_lines(rows: Sequence[SizeRow], axis: Any, value: Callable[[SizeRow], float]) -> None:
    for shape, mode in dict.fromkeys((row.shape, row.mode) for row in rows):
        some = sorted(
            (row for row in rows if (row.shape, row.mode) == (shape, mode)),
            key=lambda row: row.total,
        )
        style = {"color": SHAPE_COLORS[shape], "markersize": 4, "label": f"{shape}, {mode}"}
        across = [row.total / 1000 for row in some]
        axis.plot(across, [value(row) for row in some], MODE_STYLES[mode], **style)
    from_zero(axis, "subscribed topics of all clients, thousands")
    axis.set_ylim(0, HEADROOM * max(map(value, rows)))


# ── the algorithm as published ───────────────────────────────────────────────────────────


def _published(rows: Sequence[RunsRow]) -> Any:
    figure, axes = blank(1, height_in=2.0)
    axis = axes[0, 0]
    entitle(axis, "Random runs in which a subscriber waits for ever, or two orders differ, %")
    labels = [_folded(row.algorithm) + ":\n" + _folded(row.trouble) for row in rows]
    width = 0.38
    for number, (name, color) in enumerate((("stalled", GREY), ("inverted", ORANGE))):
        across = [at + (number - 0.5) * width for at in range(len(rows))]
        heights = [100 * getattr(row, name) / row.runs for row in rows]
        bars = axis.bar(across, heights, width, color=color, label=name)
        axis.bar_label(bars, [f"{each:.3g}" for each in heights], fontsize=7, color=INK)
    axis.set_xticks(range(len(rows)), labels, fontsize=6.5)
    axis.set_ylim(0, 100 * HEADROOM)
    legend(figure, axis)
    return figure


def _folded(words: str) -> str:
    """In lines of about half its length."""
    half = words.find(" ", len(words) // 2)
    return words if half < 0 else f"{words[:half]}\n{words[half + 1 :]}"


# ── loads ────────────────────────────────────────────────────────────────────────────────


def _shapes(rows: Sequence[LineRow]) -> list[str]:
    return list(dict.fromkeys(row.shape for row in rows))


def _latency(
    rows: Sequence[LineRow], title: str, across: str, place: Callable[[LineRow], float]
) -> Any:
    """A panel for each shape."""
    shapes = _shapes(rows)
    figure, axes = blank(1, len(shapes), height_in=1.1)
    figure.suptitle(f"{title}, ms", fontsize=10, color=INK)
    top = max(paper4.LATENCY_MS, *(value(row) for row in rows for value in VIEWS.values()))
    for axis, shape in zip(axes[0], shapes, strict=True):
        entitle(axis, shape)
        some = sorted((row for row in rows if row.shape == shape), key=place)
        for name, value in VIEWS.items():
            style = {"color": SHAPE_COLORS[shape], "markersize": 5, **VIEW_STYLES[name]}
            known = [value(row) for row in some]
            axis.plot([place(row) for row in some], known, label=name, **style)
        if shape == paper4.SHAPES[0] and place is _rate:
            axis.axhline(paper4.LATENCY_MS, color=GREY, linewidth=0.8)
            where = {"fontsize": 7, "color": GREY, "va": "bottom"}
            axis.text(0, paper4.LATENCY_MS, " the paper: below this", **where)
        from_zero(axis, across)
        axis.set_ylim(0, HEADROOM * top)
    _legend_of_views(figure)
    return figure


def _legend_of_views(figure: Any) -> None:
    """The panels have lines of different colors; the legend is about their styles."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=INK, **VIEW_STYLES[name]) for name in VIEWS]  # type: ignore[arg-type]
    place = {"loc": "outside lower center", "ncols": len(VIEWS)}
    figure.legend(lines, list(VIEWS), fontsize=8, frameon=False, labelcolor=INK, **place)


def _throughput(rows: Sequence[LineRow], across: str, place: Callable[[LineRow], float]) -> Any:
    figure, axes = blank(1, height_in=0.9)
    axis = axes[0, 0]
    entitle(axis, "Timestamps per second")
    asked = sorted({(place(row), row.per_s) for row in rows})
    style = {"color": GREY, "linewidth": 4, "alpha": 0.35, "label": "asked for"}
    axis.plot([each[0] for each in asked], [each[1] for each in asked], **style)
    for shape in _shapes(rows):
        some = sorted((row for row in rows if row.shape == shape), key=place)
        style = {"color": SHAPE_COLORS[shape], "marker": "o", "markersize": 4, "label": shape}
        axis.plot([place(row) for row in some], [row.answered_per_s for row in some], **style)
    from_zero(axis, across)
    axis.set_ylim(0, HEADROOM * max(max(row.per_s, row.answered_per_s) for row in rows))
    legend(figure, axis)
    return figure


def _outgoing(rows: Sequence[LineRow]) -> Any:
    """A panel for each shape, a line for each site."""
    shapes = _shapes(rows)
    figure, axes = blank(1, len(shapes), height_in=1.1)
    title = "Outgoing bandwidth for other sites, %, as in figures 11 and 12"
    figure.suptitle(title, fontsize=10, color=INK)
    for axis, shape in zip(axes[0], shapes, strict=True):
        entitle(axis, shape)
        some = sorted((row for row in rows if row.shape == shape), key=_rate)
        for number, site in enumerate(sorted(some[0].outgoing)):
            style = {"color": SITE_COLORS[number], "marker": SITE_MARKERS[number]}
            shares = [100 * row.outgoing[site] for row in some]
            axis.plot([row.per_s for row in some], shares, markersize=4, label=site, **style)
        from_zero(axis, "events per second")
        axis.set_ylim(0, 100)
    legend(figure, axes[0, 0])
    return figure


def _placement(rows: Sequence[LineRow]) -> Any:
    figure, axes = blank(1, height_in=1.2)
    axis = axes[0, 0]
    entitle(axis, f"Mean latency, {rows[0].per_s:,} events/s, ms")
    cases = list(dict.fromkeys((row.shape, row.mode) for row in rows))
    known: Mapping[Any, LineRow] = {(row.shape, row.mode, row.placed): row for row in rows}
    width = 0.2
    bars = [
        (placed, name, color)
        for placed, color in ((BY_NUMBER, GREY), (PLANNED, BLUE))
        for name in ("predicted", "measured")
    ]
    for number, (placed, name, color) in enumerate(bars):
        there = [(at, known[*case, placed]) for at, case in enumerate(cases)
                 if (*case, placed) in known]  # fmt: skip
        across = [at + (number - 1.5) * width for at, _ in there]
        heights = [row.mean_ms if name == "measured" else row.floor_ms for _, row in there]
        look = {"color": color, "alpha": 1.0 if name == "measured" else 0.45}
        drawn = axis.bar(across, heights, width, label=f"placed {placed}, {name}", **look)
        axis.bar_label(drawn, [f"{each:.0f}" for each in heights], fontsize=7, color=INK)
    axis.set_xticks(range(len(cases)), [f"{shape}, {mode}" for shape, mode in cases], fontsize=8)
    axis.set_ylim(0, HEADROOM * max(max(row.mean_ms, row.floor_ms) for row in rows))
    lines, names = axis.get_legend_handles_labels()
    place = {"loc": "outside lower center", "ncols": 2}
    figure.legend(lines, names, fontsize=8, frameon=False, labelcolor=INK, **place)
    return figure


if __name__ == "__main__":
    print(*again(Path(sys.argv[1])), sep="\n")
