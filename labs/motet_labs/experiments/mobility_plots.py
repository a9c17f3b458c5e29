"""The plots of the experiment with clients that move, like figures 8 to 14 of paper 3.

    python -m motet_labs.experiments.mobility_plots DIR

draws them again from the `mobility.json` in that folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from motet.pictures import BLUE, GREEN, INK, ORANGE, save
from motet_labs.experiments.axes import blank, entitle, legend, logarithmic
from motet_labs.experiments.mobility_report import TITLES, VARIED
from motet_labs.experiments.movements import MoveRow, Point
from motet_labs.experiments.rivals import COVERED, LINES, RECONFIGURATION, REISSUE, SURE

TEAL = "#3fa7a3"
COLORS = {
    RECONFIGURATION.name: BLUE,
    COVERED.name: ORANGE,
    REISSUE.name: GREEN,
    SURE.name: TEAL,
}
MARKERS = {RECONFIGURATION.name: "o", COVERED.name: "s", REISSUE.name: "^", SURE.name: "v"}
BARS = ("workloads", "single", "wide-area")
"""Parts that vary no number, or few: bars side by side."""
Value = Callable[[MoveRow], float]
SHOWN: dict[str, Value] = {
    "median latency, ms": lambda row: row.latency.p50_ms,
    "control and soft messages per movement": lambda row: row.traffic.control + row.traffic.soft,
    "movements per second": lambda row: row.per_s,
}


def of(rows: Sequence[MoveRow], points: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """By the names of their files."""
    parts = dict.fromkeys(row.part for row in rows)
    drawn = {part: _of_part(part, [row for row in rows if row.part == part]) for part in parts}
    if any(points.values()):
        drawn["workloads-2"] = _over_time(points)
    return drawn


def again(directory: Path) -> list[Path]:
    """Draw all from the figures of an earlier run; returns their files."""
    told = json.loads((directory / "mobility.json").read_text(encoding="utf-8"))
    rows = [MoveRow.from_json(each) for each in told["rows"]]
    points = {line: [Point(*each) for each in some] for line, some in told["series"].items()}
    return [save(figure, directory / f"{name}.png") for name, figure in of(rows, points).items()]


def _of_part(part: str, rows: Sequence[MoveRow]) -> Any:
    """Below each other with many workloads, else side by side."""
    is_wide = part == "workloads"
    figure, axes = blank(*((3, 1) if is_wide else (1, 3)), height_in=1.1)
    figure.suptitle(TITLES[part], fontsize=10, color=INK)
    names = _names(rows)
    for axis, (title, value) in zip(axes.flat, SHOWN.items(), strict=True):
        entitle(axis, title if is_wide else title.replace(" per", "\nper"))
        (_bars if part in BARS else _lines)(axis, rows, names, value)
        axis.set_ylim(0, 1.1 * max((value(row) for row in rows), default=1.0) or 1.0)
        if part not in BARS:
            axis.set_xlabel(VARIED[part], fontsize=8, color=INK)
    legend(figure, axes.flat[0])
    return figure


def _names(rows: Sequence[MoveRow]) -> list[str]:
    there = {row.line for row in rows}
    return [line.name for line in LINES if line.name in there]


def _bars(axis: Any, rows: Sequence[MoveRow], names: Sequence[str], value: Value) -> None:
    places = list(dict.fromkeys((row.workload, row.at) for row in rows))
    by_number = len({workload for workload, _ in places}) == 1
    labels = [f"{at:,} clients" if by_number else name.replace(", ", ",\n") for name, at in places]
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        known = {(row.workload, row.at): row for row in rows if row.line == name}
        across = [at + (number - (len(names) - 1) / 2) * width for at in range(len(places))]
        heights = [value(known[place]) for place in places]
        bars = axis.bar(across, heights, width, color=COLORS[name], label=name)
        axis.bar_label(bars, [_told(each) for each in heights], fontsize=6, color=INK)
    axis.set_xticks(range(len(places)), labels, fontsize=7)


def _told(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _lines(axis: Any, rows: Sequence[MoveRow], names: Sequence[str], value: Value) -> None:
    for name in names:
        some = sorted((row for row in rows if row.line == name), key=lambda row: row.at)
        style = {"color": COLORS[name], "marker": MARKERS[name], "markersize": 4, "label": name}
        axis.plot([row.at for row in some], [value(row) for row in some], **style)
    axis.set_xticks(sorted({row.at for row in rows}))


def _over_time(points: Mapping[str, Sequence[Point]]) -> Any:
    """Every movement: the large points are those of the subscriptions that cover others."""
    shown = [line.name for line in LINES if points.get(line.name)]
    figure, axes = blank(len(shown))
    figure.suptitle("Latency over time, ms", fontsize=10, color=INK)
    every = [point.ms for name in shown for point in points[name]]
    for axis, name in zip(axes[:, 0], shown, strict=True):
        for wide, size in ((False, 2.5), (True, 6)):
            some = [point for point in points[name] if bool(point.direct) is wide]
            style = {"color": COLORS[name], "markersize": size, "linestyle": ""}
            times = [point.at_s for point in some]
            axis.plot(times, [point.ms for point in some], marker="o" if wide else ".", **style)
        entitle(axis, name)
        logarithmic(axis)
        axis.set_ylim(min(every) / 1.3, max(every) * 1.3)
    axes[-1, 0].set_xlabel("begin of the movement, s", fontsize=8, color=INK)
    return figure


if __name__ == "__main__":
    print(*again(Path(sys.argv[1])), sep="\n")
