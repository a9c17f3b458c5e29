"""The pictures of an experiment, like figures 4 to 8 of the paper. Needs matplotlib."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from motet.experiments import paper
from motet.experiments.exactly_once import Report
from motet.experiments.faults import Record
from motet.experiments.overhead import Overhead
from motet.pictures import BLUE, GREEN, GREY, INK, ORANGE, check, rule, save, sheet

WIDTH_IN, ROW_IN = 8.0, 2.5


def draw(report: Report, directory: Path) -> list[Path]:
    """One picture for each part; their files."""
    check()
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    if report.overhead is not None:
        drawn.append(save(_overhead(report.overhead), directory / "overhead.png"))
    for record in report.records:
        drawn.append(save(_fault(record), directory / f"{record.fault}.png"))
    return drawn


def blank(rows: int, columns: int = 1) -> tuple[Any, Any]:
    figure, axes = sheet(WIDTH_IN, ROW_IN * rows + 0.6, rows, columns)
    for axis in axes.flat:
        rule(axis)
    return figure, axes


# ── overhead ─────────────────────────────────────────────────────────────────────────────


def _overhead(found: Overhead) -> Any:
    figure, axes = blank(1, 2)
    figure.set_size_inches(WIDTH_IN, 3.6)
    cpu, latency = axes[0]
    counts = [row.subscribers for row in found.rows]

    def line(axis: Any, mode: str, what: str, color: str, label: str) -> None:
        sure = mode == "exactly_once"
        axis.plot(
            counts,
            [row.modes[mode][what] for row in found.rows],
            color=color,
            marker="o" if sure else "s",
            markersize=4,
            linestyle="-" if sure else "--",
            label=f"{label}, {'exactly once' if sure else 'best effort'}",
        )

    for mode in ("exactly_once", "best_effort"):
        line(cpu, mode, "publishers_cpu_points", BLUE, "publishers' broker")
        line(cpu, mode, "subscribers_cpu_points", ORANGE, "subscribers' broker")
        line(latency, mode, "local_ms", BLUE, "local")
        line(latency, mode, "remote_ms", ORANGE, "remote")
    cpu.set_title("CPU, % of one core", fontsize=9, loc="left", color=INK)
    latency.set_title("median latency, ms", fontsize=9, loc="left", color=INK)
    for axis in (cpu, latency):
        axis.set_xlabel("subscribers", fontsize=8, color=INK)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.margins(y=0.25)
        axis.legend(fontsize=7, frameon=False, loc="upper left")
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * 1.35)  # room for the legend
    rate = f"{found.effort.per_s:,} events/s of {paper.OVERHEAD_BYTES} bytes"
    figure.suptitle(
        f"Exactly once against best effort: {rate}, {paper.SUBSCRIBER_PER_S}/s per subscriber",
        fontsize=10,
        color=INK,
    )
    return figure


# ── faults ───────────────────────────────────────────────────────────────────────────────

TITLES = {
    "link": "Link {}–s1 stalls, fails, and is back",
    "broker": "Broker {} stalls, crashes, and is back",
    "publisher": "The publishers' broker {} stalls, crashes, and is back",
}
SHOWN = {"link": ("s1", "s2"), "broker": ("s1", "s3"), "publisher": ("s1",)}
"""Whose latency is shown: somebody behind the victim, and somebody who is not."""


def _fault(record: Record) -> Any:
    shown = SHOWN[record.fault]
    figure, axes = blank(len(shown) + 1)
    for axis, name in zip(axes[:, 0], shown, strict=False):
        _latency(axis, record, name)
    _nacks(axes[-1, 0], record)
    axes[-1, 0].set_xlabel("time of sending, s", fontsize=8, color=INK)
    axes[-1, 0].set_xlim(0, _end_s(record))
    for axis in axes[:, 0]:
        _shade(axis, record)
    figure.suptitle(TITLES[record.fault].format(record.victim), fontsize=10, color=INK)
    return figure


def _latency(axis: Any, record: Record, name: str) -> None:
    notes = record.arrivals[name]
    axis.plot(
        [note.sent for note in notes],
        [note.latency_s * 1e3 for note in notes],
        ".",
        color=BLUE,
        markersize=2.5,
    )
    axis.set_title(f"latency at {name}, ms", fontsize=9, loc="left", color=INK)
    peak = max((note.latency_s * 1e3 for note in notes), default=1.0)
    axis.set_ylim(0, max(peak * 1.15, 100))


def _end_s(record: Record) -> float:
    """Until everything was sent, and everything was asked for."""
    last_nack_s = max((each.at for each in record.nacks), default=0.0)
    return max(record.schedule.total_s, last_nack_s + record.schedule.total_s / 50)


def _nacks(axis: Any, record: Record) -> None:
    """Every point is one nack; their ranges add up."""
    cell, upstream = paper.CELLS["IB1"], paper.PUBLISHER_BROKER
    for label, brokers, color, marker in (
        ("s1", ("s1",), BLUE, "o"),
        ("s2", ("s2",), ORANGE, "s"),
        (f"IB1 to {upstream}", cell, GREEN, "^"),
    ):
        points = [
            each
            for each in record.nacks
            if each.way == "sent"
            and each.broker in brokers
            and (each.broker not in cell or each.neighbour == upstream)
        ]
        sums = list(accumulate(each.range_ms for each in points))
        if points:
            axis.plot(
                [0.0, *(each.at for each in points), _end_s(record)],
                [0.0, *sums, sums[-1]],
                drawstyle="steps-post",
                color=color,
                linewidth=1,
                alpha=0.7,
            )
            axis.plot(
                [each.at for each in points],
                sums,
                linestyle="",
                marker=marker,
                markersize=6,
                markerfacecolor="none",
                color=color,
                label=f"{label}: {len(points)} nack{'s' if len(points) > 1 else ''}",
            )
    axis.set_title("nack range sent, ms, cumulative", fontsize=9, loc="left", color=INK)
    if axis.lines:
        axis.set_ylim(0, axis.get_ylim()[1] * 1.25)
        axis.legend(fontsize=7, frameon=False, loc="center left")
    else:
        axis.set_ylim(0, 1)


def _shade(axis: Any, record: Record) -> None:
    stall, fail, heal = (record.mark(what) for what in ("stall", "fail", "heal"))
    axis.axvspan(stall, fail, color="#f4c542", alpha=0.25, linewidth=0)
    axis.axvspan(fail, heal, color="#d94f4f", alpha=0.13, linewidth=0)
    top = axis.get_ylim()[1]
    for begin, text in ((stall, "stalled"), (fail, "gone"), (heal, "back")):
        axis.text(begin, top, f" {text}", fontsize=7, color=GREY, va="top")
