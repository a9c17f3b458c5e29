"""Figures: what was measured, beside what the machine allows and what we promised."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from motet.matching import ENGINE
from motet.runtime.loop import loop_name

Progress = Callable[[str], None]
"""Told what is being measured now."""


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
    """False if something went wrong that makes the figure worthless, such as losses."""

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
        return {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "floor": _rounded(self.floor),
            "ratio": _rounded(self.ratio),
            "goal": self.goal,
            "holds": self.holds,
        }


def report(figures: Iterable[Figure]) -> dict[str, Any]:
    return {"results": [figure.to_json() for figure in figures], "machine": machine()}


def table(figures: Iterable[Figure]) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("figure")
    for column in ("value", "floor", "ratio", "goal"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("unit", no_wrap=True)
    shown.add_column("holds", no_wrap=True)
    for figure in figures:
        shown.add_row(
            figure.name,
            _shown(figure.value),
            _shown(figure.floor),
            f"{figure.ratio:.2f}" if figure.ratio is not None else "–",
            f"{'≤' if figure.sense == 'at most' else '≥'} {_shown(figure.goal)}"
            if figure.goal is not None
            else "–",
            figure.unit,
            VERDICTS[figure.holds],
        )
    return shown


VERDICTS = {
    True: Text("yes", style="green"),
    False: Text("no", style="bold red"),
    None: Text("–"),
}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


# ── the machine ──────────────────────────────────────────────────────────────────────────


def machine() -> dict[str, Any]:
    """Where the figures come from; none of them means much without it."""
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


def cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()
