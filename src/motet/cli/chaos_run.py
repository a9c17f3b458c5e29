"""One run of `motet chaos`: its folder, its progress on a terminal, its tables.

Separate from its command because it imports brokers, clients and checkers, which would slow down
the other commands.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from pathlib import Path
from random import SystemRandom
from tempfile import mkdtemp
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from motet.broker.folder.journal import DURABILITIES
from motet.chaos.cast import OrderChaosPlan
from motet.chaos.judgement import ChaosReport
from motet.chaos.ordering import OrderReport, OrderRun
from motet.chaos.plan import ChaosPlan
from motet.chaos.run import ChaosRun
from motet.cli.console import FAILED, FINE, INTERRUPTED, Misuse, err, out, say, say_json, table
from motet.runtime import loop

REFRESH_S = 0.2
BAR_COLUMNS = 16
SEEDS = 1_000_000
CALMER_S: dict[str, float] = {"transactions": 3.0, "mobility": 2.0}
"""The mean time between two faults, by profile. A transaction needs every broker: if one is always
down, none ever commits."""
SLOWER_S = {"mobility": 0.03}
"""The mean time between two actions of clients: there is more traffic beside."""


def plan(
    brokers: int,
    seconds: float,
    seed: int | None,
    shape: Any,
    profile: Any,
    covering: bool,
    durability: str,
    history: bool = False,
) -> ChaosPlan:
    if durability not in DURABILITIES:
        raise Misuse(
            f"unknown durability {durability!r}", f"choose one of {', '.join(DURABILITIES)}"
        )
    return ChaosPlan(
        brokers=brokers,
        seconds=seconds,
        seed=SystemRandom().randrange(SEEDS) if seed is None else seed,
        shape=shape,
        profile=profile,
        strike_s=CALMER_S.get(profile, ChaosPlan().strike_s),
        action_s=SLOWER_S.get(profile, ChaosPlan().action_s),
        covering=covering,
        durability=durability,
        history=history or profile == "mobility",  # the brokers tell where sessions have been
    )


def order_plan(sites: int, seconds: float, seed: int | None, standbys: bool) -> OrderChaosPlan:
    seed = SystemRandom().randrange(SEEDS) if seed is None else seed
    return OrderChaosPlan(sites=sites, seconds=seconds, seed=seed, standbys=standbys)


def run(plan: ChaosPlan | OrderChaosPlan, directory: Path | None, json: bool) -> int:
    """Do the whole run; returns the exit status."""
    # Clients need not log lost sessions and unreachable brokers: the report has them.
    clients = logging.getLogger("motet.client")
    loudness = clients.level
    clients.setLevel(logging.CRITICAL)
    folder = _folder(directory)
    report: ChaosReport | OrderReport | None = None
    try:
        report = loop.run(_watched(plan, folder, quiet=json))
    finally:
        clients.setLevel(loudness)
        keep = directory is not None or (report is not None and not report.kept)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if report is None:
        return INTERRUPTED
    if json:
        say_json(report.to_json() | {"directory": str(folder) if keep else None})
    else:
        if isinstance(report, ChaosReport):
            show(report)
        else:
            show_order(report)
        if keep:
            say(f"journals, logs and the report are in {folder}")
    return FINE if report.kept else FAILED


def _folder(directory: Path | None) -> Path:
    """A new or empty folder: a run must not find the journals of another."""
    if directory is None:
        return Path(mkdtemp(prefix="motet-chaos-"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise Misuse(f"{directory} is not empty", "--dir takes a new folder for each run")
        (directory / "story.txt").touch()
    except OSError as problem:
        raise Misuse(
            f"{directory} cannot be used: {problem.strerror or problem}", "--dir DIR"
        ) from None
    return directory.absolute()


# ── running ──────────────────────────────────────────────────────────────────────────────


async def _watched(
    plan: ChaosPlan | OrderChaosPlan, folder: Path, *, quiet: bool
) -> ChaosReport | OrderReport | None:
    """The report; None if the run was interrupted."""
    shown = not quiet and err().is_terminal
    bar = Progress(
        TextColumn("{task.description:>9}"),
        BarColumn(bar_width=BAR_COLUMNS),
        TextColumn("{task.fields[remark]}"),
        console=err(),
        disable=not shown,
    )
    tell = bar.console.print if shown else str
    storm: ChaosRun | OrderRun = (
        ChaosRun(plan, folder, tell)
        if isinstance(plan, ChaosPlan)
        else OrderRun(plan, folder, tell)
    )
    working: asyncio.Future[ChaosReport | OrderReport] = asyncio.ensure_future(storm.report())
    running_loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running_loop.add_signal_handler(number, working.cancel)
    with bar:
        task = bar.add_task(storm.stage, total=plan.seconds, remark="")
        while not working.done():
            elapsed_s = min(storm.stormed_s, plan.seconds)
            bar.update(task, completed=elapsed_s, description=storm.stage, remark=_remark(storm))
            await asyncio.wait({working}, timeout=REFRESH_S)
    try:
        return working.result()
    except asyncio.CancelledError:
        return None


def _remark(storm: ChaosRun | OrderRun) -> str:
    if isinstance(storm, OrderRun):
        return storm.remark()
    chronicle = storm.chronicle
    history = chronicle.history
    return (
        f"{sum(chronicle.faults.values())} faults · {len(history.calls):,} operations · "
        f"{len(history.events):,} events · {len(history.deliveries):,} delivered"
    )


# ── telling ──────────────────────────────────────────────────────────────────────────────


def show(report: ChaosReport) -> None:
    plan = report.plan
    say(f"{plan.brokers} brokers in a {plan.shape}, {plan.seconds:g} s, seed {plan.seed}\n")
    counts = table("", "what", "count", right=("count",))
    for title, figures in (
        ("faults", report.faults),
        ("operations", report.operations),
        ("events", report.events),
        ("sessions", report.sessions),
        ("exactly once", report.delivery),
        ("transactions", report.transactions),
        ("moves", report.moves),
    ):
        for name, count in figures.items():
            counts.add_row(f"{title}: {name.replace('_', ' ')}", f"{count:,}")
    counts.add_row("recoveries of brokers", f"{report.recoveries:,}")
    if report.delivery:
        counts.add_row("longest silence at a subscriber", f"{report.longest_silence_s:.1f} s")
    if report.moves:
        counts.add_row("longest way to another broker", f"{report.longest_transit_s:.1f} s")
    counts.add_row("longest outage", f"{report.longest_outage_s:.1f} s")
    out().print(counts)
    _show_verdict(report)


def show_order(report: OrderReport) -> None:
    plan = report.plan
    sites = f"{plan.sites} sites with standbys" if plan.standbys else f"{plan.sites} sites"
    what = f"{sites}, {plan.clients} clients, NATS"
    say(f"{what}, {plan.seconds:g} s, seed {plan.seed}\n")
    counts = table("", "what", "count", right=("count",))
    for title, figures in (("faults", report.faults), ("clients", report.figures)):
        for name, count in figures.items():
            counts.add_row(f"{title}: {name.replace('_', ' ')}", f"{count:,}")
    counts.add_row("longest silence at a stream", f"{report.longest_silence_s:.1f} s")
    out().print(counts)
    _show_verdict(report)


def _show_verdict(report: ChaosReport | OrderReport) -> None:
    plan = report.plan
    say("")
    shown = table("", "guarantee", "checked", "violated", right=("checked", "violated"))
    for guarantee in sorted({*report.checked, *report.violated}):
        checked, violated = report.checked.get(guarantee, 0), report.violated.get(guarantee, 0)
        shown.add_row(guarantee, f"{checked:,}", str(violated))
    out().print(shown)
    for violation in report.violations:
        say(f"\nVIOLATED {violation.guarantee}: {violation.detail}")
    said = "no violations" if report.kept else f"VIOLATED; --seed {plan.seed} repeats the faults"
    say(f"\n{said}")
