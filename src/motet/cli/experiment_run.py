"""The runs of `motet experiment`: their progress on a terminal, their tables.

Separate from their commands because they import brokers, clients and load generators, which would
slow down the other commands.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from motet.cli.console import FAILED, FINE, INTERRUPTED, Misuse, err, out, say, say_json, table
from motet.pictures import check as check_pictures
from motet.runtime import loop
from motet.spark.session import require_java, require_pyspark
from motet_labs import figures
from motet_labs.experiments import plots as pictures
from motet_labs.experiments.exactly_once import (
    FULL,
    OVERHEAD_COLUMNS,
    SHORT,
    ExactlyOncePlan,
    ExactlyOnceReport,
    measure,
    overhead_rows,
)
from motet_labs.experiments.mobility import MobilityExperiment
from motet_labs.experiments.mobility_plan import FULL as MOBILITY
from motet_labs.experiments.mobility_plan import QUICK as QUICK_MOBILITY
from motet_labs.experiments.ordering import OrderingExperiment
from motet_labs.experiments.ordering_plan import FULL as ORDERING
from motet_labs.experiments.ordering_plan import QUICK as QUICK_ORDERING
from motet_labs.experiments.ordering_plan import SIZES
from motet_labs.experiments.overhead import Overhead
from motet_labs.experiments.transactions import FULL as TRANSACTIONS
from motet_labs.experiments.transactions import QUICK, TransactionsExperiment

REFRESH_S = 0.2
BAR_COLUMNS = 24


def _prepare(directory: Path, plots: bool) -> None:
    """Make the folder for the page, the figures and the plots of an experiment."""
    if plots:
        check_pictures("or omit pictures with --no-plots")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise Misuse(
            f"{directory} cannot be written: {problem.strerror or problem}", "--out DIR"
        ) from None


def exactly_once(
    parts: Sequence[str], short: bool, directory: Path, plots: bool, json: bool
) -> int:
    """Do the whole run; returns the exit status."""
    _prepare(directory, plots)
    plan = replace(SHORT if short else FULL, parts=tuple(dict.fromkeys(parts)))
    # Clients log every lost connection; here connections are broken on purpose.
    clients = logging.getLogger("motet.client")
    loudness = clients.level
    clients.setLevel(logging.CRITICAL)
    try:
        report = loop.run(_watched(plan, directory, quiet=json))
    finally:
        clients.setLevel(loudness)
    if report is None:
        return INTERRUPTED
    if report.overhead is not None and not json:
        _show_overhead(report.overhead)
    return _tell(report, directory, plots, json)


def transactions(
    parts: Sequence[str], short: bool, directory: Path, plots: bool, json: bool
) -> int:
    """Do the whole run; returns the exit status."""
    _prepare(directory, plots)
    plan = replace(QUICK if short else TRANSACTIONS, parts=tuple(dict.fromkeys(parts)))
    with err().status("") as line:
        report = TransactionsExperiment(plan, line.update).run(directory)
    return _tell(report, directory, plots, json)


def mobility(parts: Sequence[str], short: bool, directory: Path, plots: bool, json: bool) -> int:
    """Do the whole run; returns the exit status."""
    _prepare(directory, plots)
    plan = replace(QUICK_MOBILITY if short else MOBILITY, parts=tuple(dict.fromkeys(parts)))
    with err().status("") as line:
        report = MobilityExperiment(plan, line.update).run(directory)
    return _tell(report, directory, plots, json)


def ordering(parts: Sequence[str], short: bool, directory: Path, plots: bool, json: bool) -> int:
    """Do the whole run; returns the exit status."""
    require_pyspark()
    if SIZES in parts:
        require_java()
    _prepare(directory, plots)
    plan = replace(QUICK_ORDERING if short else ORDERING, parts=tuple(dict.fromkeys(parts)))
    began = time.monotonic()
    with _bar(plan.expected_s, quiet=json) as bar:
        task = bar.add_task("starting", total=plan.expected_s)

        def tell(stage: str) -> None:
            done_s = min(time.monotonic() - began, plan.expected_s)
            bar.update(task, description=stage, completed=done_s)

        report = OrderingExperiment(plan, tell).run(directory)
    return _tell(report, directory, plots, json)


def _bar(expected_s: float, *, quiet: bool) -> Progress:
    return Progress(
        BarColumn(bar_width=BAR_COLUMNS),
        TimeElapsedColumn(),
        TextColumn(f"of about {expected_s / 60:.1f} min · {{task.description}}"),
        console=err(),
        disable=quiet or not err().is_terminal,
    )


async def _watched(
    plan: ExactlyOncePlan, directory: Path, *, quiet: bool
) -> ExactlyOnceReport | None:
    """The report; None if the run was interrupted."""
    with _bar(plan.expected_s, quiet=quiet) as bar:
        task = bar.add_task("starting", total=plan.expected_s)
        working = asyncio.ensure_future(
            measure(plan, directory, lambda stage: bar.update(task, description=stage))
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, working.cancel)
        began = time.monotonic()
        while not working.done():
            bar.update(task, completed=min(time.monotonic() - began, plan.expected_s))
            await asyncio.wait({working}, timeout=REFRESH_S)
    try:
        return working.result()
    except asyncio.CancelledError:
        return None


# ── reporting ────────────────────────────────────────────────────────────────────────────


def _show_overhead(found: Overhead) -> None:
    names = ("subscribers", *OVERHEAD_COLUMNS)
    title = f"{found.effort.per_s:,} events/s"
    shown = table(title, "subscribers", "delivery", *OVERHEAD_COLUMNS, right=names)
    for row in overhead_rows(found):
        shown.add_row(*row)
    out().print(shown)
    say("")


def _tell(report: pictures.Report, directory: Path, plots: bool, json: bool) -> int:
    """Draw the plots and write the page; print everything as JSON, or the measurements beside the
    paper's. Returns the exit status."""
    drawn = pictures.draw(report, directory) if plots else []
    text, file = (directory / f"{report.name}.{kind}" for kind in ("md", "json"))
    text.write_text(report.page(drawn), encoding="utf-8")
    if json:
        paths = [str(path) for path in drawn]
        say_json(report.to_json() | {"file": str(file), "page": str(text), "plots": paths})
    else:
        shown = table("", "part", "figure", "here", "unit", "the paper", "holds", right=("here",))
        for each in report.findings:
            holds = figures.VERDICTS[each.holds]
            shown.add_row(each.part, each.name, each.shown, each.unit, each.paper or "–", holds)
        out().print(shown)
        say(f"\n{report.took_s:.0f} s; {figures.describe_machine()}")
        if not report.kept:
            say(f"VIOLATED: {report.violation}")
        say("\n" + "\n".join(map(str, (text, file, *drawn))))
    return FINE if report.kept else FAILED
