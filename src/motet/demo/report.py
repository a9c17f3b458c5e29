"""The promises of the demo, counted, in the one shape of all figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from motet.bench import figures
from motet.bench.figures import Figure
from motet.demo.account import Tally


class Crash(NamedTuple):
    """What a killed broker cost."""

    resumed_s: float
    lost_sessions: int
    lost_routes: int
    kept: int
    """Deliveries of what was published while it was down."""


def promises(tally: Tally, effective: int, tried: int, crash: Crash) -> list[Figure]:
    def count(name: str, value: int, goal: int | None = 0) -> Figure:
        return Figure(name, value, "events", None, None if goal is None else float(goal))

    return [
        count("published", tally.published, None),
        count("delivered", tally.delivered, None),
        count("lost", tally.lost),
        count("doubled", tally.doubled),
        count("misrouted", tally.misrouted),
        count("out of order", tally.disordered),
        count("refused outside the advertised space", tally.refused, None),
        count("refused, but delivered", tally.refused_delivered),
        Figure(
            "subscriptions that were effective when subscribe returned",
            effective,
            "subscriptions",
            None,
            float(tried),
            "at least",
        ),
        Figure("sessions lost with a killed broker", crash.lost_sessions, "sessions", None, 0.0),
        Figure("routes lost with a killed broker", crash.lost_routes, "routes", None, 0.0),
        Figure("until events flowed again after a broker was killed", crash.resumed_s, "s"),
        count("published while a broker was down, and delivered", crash.kept, None),
    ]


def kept(results: Sequence[Figure]) -> bool:
    return all(figure.holds is not False for figure in results)


def table(results: Sequence[Figure]) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("promise")
    for column in ("count", "goal"):
        shown.add_column(column, justify="right")
    shown.add_column("unit")
    shown.add_column("kept")
    for figure in results:
        sign = "≤" if figure.sense == "at most" else "≥"
        shown.add_row(
            figure.name,
            f"{figure.value:,.4g}",
            "" if figure.goal is None else f"{sign} {figure.goal:g}",
            figure.unit,
            "" if figure.holds is None else figures.VERDICTS[figure.holds],
        )
    return shown


def write(results: Sequence[Figure], directory: Path) -> None:
    """`report.txt` for people, `report.json` for programs."""
    directory.mkdir(parents=True, exist_ok=True)
    page = Console(file=StringIO(), width=120)
    page.print(table(results))
    text = page.file.getvalue()  # type: ignore[attr-defined]
    (directory / "report.txt").write_text(text + "\n" + figures.describe_machine() + "\n")
    (directory / "report.json").write_text(json.dumps(figures.report(results), indent=2) + "\n")
