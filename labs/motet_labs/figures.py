"""Figures: measured values, with what the machine allows (floor) and what was promised (goal)."""

from __future__ import annotations

import os
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

from rich.table import Table
from rich.text import Text

from motet.fleet.process import cores
from motet.matching import ENGINE
from motet.runtime.loop import loop_name


class Size(StrEnum):
    """The effort of a benchmark. The least only shows that it runs."""

    LEAST = "least"
    SHORT = "short"
    LONG = "long"


Progress = Callable[[str], None]
"""Called with what is being measured now."""
E = TypeVar("E")


@dataclass(frozen=True)
class Figure:
    """One result. `floor` was measured in the same run; `goal` is a bound in direction `sense`."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    goal: float | None = None
    sense: Literal["at most", "at least"] = "at most"
    counts: bool = True
    """False if the figure is invalid, for example because of losses."""

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None

    @property
    def holds(self) -> bool | None:
        if not self.counts:
            return False
        if self.goal is None:
            return None
        return self.value <= self.goal if self.sense == "at most" else self.value >= self.goal

    def to_json(self) -> dict[str, Any]:
        told = {"value": _rounded(self.value), "unit": self.unit, "floor": _rounded(self.floor)}
        judged = {"ratio": _rounded(self.ratio), "goal": self.goal, "holds": self.holds}
        return {"name": self.name} | told | judged


class Samples(defaultdict[str, list[float]]):
    """By name, one value per round."""

    def __init__(self) -> None:
        super().__init__(list)

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self[name].append(value)

    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.items()}


def in_rounds(
    rounds: int,
    stages: Mapping[str, Callable[[E], Mapping[str, float]]],
    effort: E,
    progress: Progress,
) -> Samples:
    """Run every stage once per round, to measure compared values at about the same time."""
    samples = Samples()
    for number in range(1, rounds + 1):
        for name, measure in stages.items():
            progress(f"round {number} of {rounds}: {name}")
            samples.add(measure(effort))
    return samples


def report(figures: Iterable[Figure]) -> dict[str, Any]:
    return {"results": [figure.to_json() for figure in figures], "machine": machine()}


def table(figures: Iterable[Figure]) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("figure")
    for column in ("value", "floor", "ratio", "goal"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("unit", no_wrap=True)
    shown.add_column("holds", no_wrap=True)
    for each in figures:
        ratio = "–" if each.ratio is None else f"{each.ratio:.2f}"
        sign = "≤ " if each.sense == "at most" else "≥ "
        goal = "–" if each.goal is None else sign + _shown(each.goal)
        measured = (_shown(each.value), _shown(each.floor), ratio, goal)
        shown.add_row(each.name, *measured, each.unit, VERDICTS[each.holds])
    return shown


VERDICTS = {True: Text("yes", style="green"), False: Text("no", style="bold red"), None: Text("–")}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def silence_s(times: Iterable[float], since: float) -> float:
    """The longest time between two arrivals, beginning with the last one before `since`."""
    ordered = sorted(times)
    before = max((each for each in ordered if each < since), default=since)
    after = [each for each in ordered if each >= since]
    return max((b - a for a, b in pairwise([before, *after])), default=0.0)


# ── the machine ──────────────────────────────────────────────────────────────────────────


def machine() -> dict[str, Any]:
    """The machine that the figures were measured on; they mean little without it."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "engine": ENGINE,
        "loop": loop_name(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def describe_machine() -> str:
    about = machine()
    load = "/".join(str(each) for each in about["load_average"])
    return (
        f"{about['cpu']}, {about['cores']} cores; {about['python']}, {about['loop']}, "
        f"matching engine {about['engine']}; load {load}; {about['platform']}"
    )


def _cpu_model() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()
