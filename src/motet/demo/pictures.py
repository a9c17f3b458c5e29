"""Pictures of the story. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from motet.demo.cast import DESK, HANDLERS, Arrival
from motet.demo.overlay import MIDDLE
from motet.pictures import BLUE, GREEN, INK, ORANGE, rule, save, sheet
from motet.spark.insight import drawing

if TYPE_CHECKING:
    from motet.demo.outcome import Outcome

WIDTH_IN: Final = 9.0
PURPLE: Final = "#7b52ab"
COLOURS: Final = {DESK: "#c9ced6", "anna": BLUE, "ben": ORANGE, "carla": GREEN}
FALL: Final = "#c62f2f"
FEW_S: Final = 1.0
"""Delays are summed up over so long."""
LEAST_S: Final = 1e-4
"""Clocks are read at two places: less is nothing."""


def draw(told: Outcome, folder: Path) -> dict[str, Path]:
    """All pictures, by what they show."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "flow": _flow(told),
        "hands": _hands(told),
        "delays": _delays(told),
    }
    drawn = {name: save(figure, folder / f"{name}.png") for name, figure in made.items()}
    if told.report is not None:
        drawn |= {path.stem: path for path in drawing.draw(told.report, folder)}
    return drawn


def _blank(height_in: float) -> tuple[Any, Any]:
    figure, axes = sheet(WIDTH_IN, height_in)
    rule(axes[0, 0])
    return figure, axes[0, 0]


def _begin_s(told: Outcome) -> float:
    return told.chronicle.began_flowing_s


def _fallen(told: Outcome, axis: Any) -> None:
    """When the broker in the middle was away."""
    chronicle, begin_s = told.chronicle, _begin_s(told)
    if chronicle.killed_at_s is not None and chronicle.back_at_s is not None:
        killed_s, back_s = chronicle.killed_at_s - begin_s, chronicle.back_at_s - begin_s
        axis.axvspan(
            killed_s, back_s, color=FALL, alpha=0.13, linewidth=0, label=f"{MIDDLE} is away"
        )
        axis.axvline(killed_s, color=FALL, linewidth=1.2)


def _finished(figure: Any, axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=11, loc="left", color=INK)
    axis.set_xlabel("seconds since the first event", fontsize=9)
    axis.set_xlim(left=0.0)
    shown = axis.get_legend_handles_labels()
    figure.legend(*shown, fontsize=8, frameon=False, loc="outside lower center", ncols=3)


def _flow(told: Outcome) -> Any:
    """How far everybody was, at any time."""
    figure, axis = _blank(3.8)
    samples, begin_s = told.chronicle.samples, _begin_s(told)
    times = [each.at_s - begin_s for each in samples]
    _fallen(told, axis)
    axis.plot(times, [s.published for s in samples], color=INK, lw=1.0, ls="--", label="published")
    axis.plot(times, [s.handled for s in samples], color=BLUE, lw=2.0, label="handled")
    axis.plot(times, [s.watched for s in samples], color=GREEN, lw=1.4, label="seen in total order")
    axis.step(
        times, [s.archived for s in samples], color=ORANGE, lw=1.8, where="post",
        label="archived by Spark",
    )  # fmt: skip
    back = _written_back(told)
    if back:
        axis.plot(
            [at_s - begin_s for at_s, _ in back], [count for _, count in back], ls="", marker="D",
            ms=6, mfc="white", mec=PURPLE, mew=1.5, label="counted in a result that came back",
        )  # fmt: skip
    axis.set_ylabel("events", fontsize=9)
    axis.set_ylim(bottom=0)
    _finished(figure, axis, "What was published, and how far everybody was")
    return figure


def _written_back(told: Outcome) -> list[tuple[float, int]]:
    """When each running result came, and how many events it speaks of."""
    totals: dict[str, tuple[float, int]] = {}
    for each in told.heard.insight:
        count = each.attributes.get("events")
        if isinstance(count, int):
            at_s, before = totals.get(each.transaction, (each.at - told.chronicle.began, 0))
            totals[each.transaction] = (at_s, before + count)
    return list(totals.values())


def _hands(told: Outcome) -> Any:
    """Who had which lot, when."""
    lots = [lot.name for lot in told.script.lots]
    figure, axis = _blank(1.4 + 0.24 * max(len(lots), 4))
    begin_s, end_s = _begin_s(told), told.chronicle.samples[-1].at_s
    for row, lot in enumerate(lots):
        since_s, holder = begin_s, DESK
        moves = [(each.ended_s, each.new) for each in told.moves.done if lot in each.lots]
        for until_s, new in [*moves, (end_s, "")]:
            colour = COLOURS[holder]
            axis.barh(row, until_s - since_s, left=since_s - begin_s, color=colour, height=0.82)
            since_s, holder = until_s, new
    _fallen(told, axis)
    for name in HANDLERS:
        axis.barh(0, 0, color=COLOURS[name], label=name)
    axis.grid(visible=False)
    axis.set_yticks(range(len(lots)), lots, fontsize=8)
    axis.set_ylim(len(lots) - 0.4, -0.6)
    count = len(told.moves.done)
    axis.set_title(
        f"Who handled which cases: {count} transactions while events flowed",
        fontsize=11, loc="left", color=INK,
    )  # fmt: skip
    axis.set_xlabel("seconds since the first event", fontsize=9)
    axis.set_xlim(0.0, end_s - begin_s)
    figure.legend(
        *axis.get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower center",
        ncols=5,
    )  # fmt: skip
    return figure


def _delays(told: Outcome) -> Any:
    """How long events took to arrive."""
    figure, axis = _blank(3.2)
    _fallen(told, axis)
    handled = [each for stretch in told.heard.stretches for each in stretch.arrivals]
    watched = [each for came in told.heard.watched.values() for each in came]
    for arrivals, colour, name in (
        (handled, BLUE, "handlers"),
        (watched, GREEN, "watchers, in total order"),
    ):
        times, middle, high = _summed(told, arrivals)
        axis.plot(times, middle, color=colour, lw=1.8, label=f"{name}: median")
        axis.plot(times, high, color=colour, lw=0.9, ls=":", label=f"{name}: 99th percentile")
    axis.set_yscale("log")
    axis.set_ylabel("milliseconds", fontsize=9)
    _finished(figure, axis, "From when an event was due to its arrival")
    return figure


def _summed(
    told: Outcome, arrivals: Sequence[Arrival]
) -> tuple[list[float], list[float], list[float]]:
    """By the time when events were due: median and 99th percentile of how much later they came, in
    milliseconds. A publisher that was held up makes them late, too."""
    begin = told.chronicle.began + _begin_s(told)
    parts: dict[int, list[float]] = {}
    for each in arrivals:
        due_s = told.script.due.get(each.key)
        if due_s is not None:
            due_s *= told.wish.seconds
            late_ms = max(each.at - begin - due_s, LEAST_S) * 1e3
            parts.setdefault(int(due_s / FEW_S), []).append(late_ms)
    times, middle, high = [], [], []
    for part, delays in sorted(parts.items()):
        delays.sort()
        times.append((part + 0.5) * FEW_S)
        middle.append(delays[len(delays) // 2])
        high.append(delays[min(len(delays) - 1, len(delays) * 99 // 100)])
    return times, middle, high
