"""One run of `motet experiment`: its progress on a terminal, its table.

Apart from its command because it imports brokers, clients and load generators, for which the
other commands should not have to wait.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from motet.bench import figures
from motet.cli.ending import FAILED, FINE, INTERRUPTED, Misuse
from motet.cli.voice import err, out, say, say_json, table
from motet.experiments import page
from motet.experiments import plots as pictures
from motet.experiments.exactly_once import FULL, SHORT, Experiment, Report
from motet.experiments.findings import Finding
from motet.pictures import check as check_pictures
from motet.runtime import loop

REFRESH_S = 0.2
BAR_COLUMNS = 24


class Told(Protocol):
    """What an experiment has found; its own file, as JSON, is written already."""

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def kept(self) -> bool: ...
    @property
    def took_s(self) -> float: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Paper:
    """The page about it, and where it goes."""

    directory: Path
    name: str
    text: str
    plots: Sequence[Path]


def make(directory: Path) -> None:
    """Where the page, the figures and the pictures of an experiment go."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise Misuse(f"{directory} cannot be written: {problem}", "--out DIR") from None


def exactly_once(
    parts: Sequence[str], short: bool, directory: Path, plots: bool, json: bool
) -> int:
    """The whole run; the exit status."""
    if plots:
        check_pictures("or leave them out with --no-plots")
    make(directory)
    plan = replace(SHORT if short else FULL, parts=tuple(dict.fromkeys(parts)))
    # Clients tell of every connection that they lose; here they lose them on purpose.
    clients = logging.getLogger("motet.client")
    loudness = clients.level
    clients.setLevel(logging.CRITICAL)
    try:
        report = loop.run(_watched(Experiment(plan, directory), quiet=json))
    finally:
        clients.setLevel(loudness)
    if report is None:
        return INTERRUPTED
    drawn = pictures.draw(report, directory) if plots else []
    paper = Paper(directory, "exactly-once", page.page(report, drawn), drawn)
    return tell(report, paper, None if json else partial(show, report))


async def _watched(experiment: Experiment, *, quiet: bool) -> Report | None:
    """The report; None if somebody has had enough."""
    expected_s = experiment.plan.expected_s
    bar = Progress(
        BarColumn(bar_width=BAR_COLUMNS),
        TimeElapsedColumn(),
        TextColumn(f"of about {expected_s / 60:.1f} min · {{task.description}}"),
        console=err(),
        disable=quiet or not err().is_terminal,
    )
    working = asyncio.ensure_future(experiment.report())
    running_loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running_loop.add_signal_handler(number, working.cancel)
    with bar:
        began = time.monotonic()
        task = bar.add_task(experiment.stage, total=expected_s)
        while not working.done():
            elapsed_s = min(time.monotonic() - began, expected_s)
            bar.update(task, completed=elapsed_s, description=experiment.stage)
            await asyncio.wait({working}, timeout=REFRESH_S)
    try:
        return working.result()
    except asyncio.CancelledError:
        return None


# ── telling ──────────────────────────────────────────────────────────────────────────────


def show(report: Report) -> None:
    if report.overhead is not None:
        title = f"{report.overhead.effort.per_s:,} events/s"
        columns = page.OVERHEAD_COLUMNS
        shown = table(title, "subscribers", "delivery", *columns, right=("subscribers", *columns))
        for row in page.overhead_rows(report.overhead):
            shown.add_row(*row)
        out().print(shown)
        say("")
    show_findings(report, "exactly-once events were lost, doubled or out of order")


def show_findings(report: Told, violation: str) -> None:
    """What was measured beside what the paper says; and, if so, what must never be."""
    shown = table("", "part", "figure", "here", "unit", "the paper", "holds", right=("here",))
    for each in report.findings:
        value, holds = page.shown(each.value), figures.VERDICTS[each.holds]
        shown.add_row(each.part, each.name, value, each.unit, each.paper or "–", holds)
    out().print(shown)
    say(f"\n{report.took_s:.0f} s; {figures.describe_machine()}")
    if not report.kept:
        say(f"VIOLATED: {violation}")


def tell(report: Told, paper: Paper, show: Callable[[], None] | None) -> int:
    """Write the page; say everything as JSON, or show it. The exit status."""
    text, file = (paper.directory / f"{paper.name}.{kind}" for kind in ("md", "json"))
    text.write_text(paper.text, encoding="utf-8")
    if show is None:
        plots = [str(path) for path in paper.plots]
        say_json(report.to_json() | {"file": str(file), "page": str(text), "plots": plots})
    else:
        show()
        say("\n" + "\n".join(map(str, (text, file, *paper.plots))))
    return FINE if report.kept else FAILED
