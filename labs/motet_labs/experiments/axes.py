"""Axes that the plots of all experiments share."""

from __future__ import annotations

from typing import Any

from motet.pictures import INK, rule, sheet

WIDTH_IN, ROW_IN = 8.0, 2.5


def blank(rows: int, columns: int = 1, height_in: float = 0.6) -> tuple[Any, Any]:
    figure, axes = sheet(WIDTH_IN, ROW_IN * rows + height_in, rows, columns)
    for axis in axes.flat:
        rule(axis)
    return figure, axes


def pair(title: str, left: str, right: str) -> tuple[Any, Any, Any]:
    """Two axes side by side."""
    figure, axes = blank(1, 2, height_in=1.1)
    figure.suptitle(title, fontsize=10, color=INK)
    for axis, name in zip(axes[0], (left, right), strict=True):
        entitle(axis, name)
    return figure, *axes[0]


def entitle(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=9, loc="left", color=INK)


def from_zero(axis: Any, across: str) -> None:
    axis.set_xlabel(across, fontsize=8, color=INK)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)


def logarithmic(axis: Any) -> None:
    """Plain numbers at 1, 2 and 5 of every power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(NullLocator())


def legend(figure: Any, axis: Any) -> None:
    """Below the picture, where no line is."""
    lines, names = axis.get_legend_handles_labels()
    place = {"loc": "outside lower center", "ncols": len(names)}
    figure.legend(lines, names, fontsize=8, frameon=False, labelcolor=INK, **place)
