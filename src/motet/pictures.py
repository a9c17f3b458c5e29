"""The common style of all plots. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from motet.errors import UnavailableError

BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#d9731a", "#2f8f4e", "#7a7a7a"
INK, GRID = "#333333", "#e3e3e3"
DPI: Final = 110


def check(way_round: str = "") -> None:
    """Raise if matplotlib is missing; call this before the work, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        advice = f", {way_round}" if way_round else ""
        raise UnavailableError(
            f"pictures need matplotlib, which is not installed: pip install 'motet[plots]'{advice}"
        ) from None


def sheet(width_in: float, height_in: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure and a grid of axes; those in a single column share the x axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, sharex=columns == 1, squeeze=False)
    for axis in axes.flat:
        axis.tick_params(labelsize=8, colors=INK)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes


def rule(axis: Any, which: str = "both") -> None:
    """Grid lines, behind the data."""
    axis.grid(visible=True, axis=which, color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)


def save(figure: Any, path: Path) -> Path:
    figure.savefig(path)
    return path
