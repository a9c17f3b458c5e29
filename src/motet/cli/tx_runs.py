"""One run of `motet experiment transactions`: what it does now, its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from motet.bench import figures
from motet.cli.ending import FAILED, FINE
from motet.cli.trial_runs import make
from motet.cli.voice import err, out, say, say_json, table
from motet.experiments import page, plots, tx_page, tx_plots
from motet.experiments.transactions import FULL, QUICK, Experiment, Report


def transactions(
    parts: Sequence[str], short: bool, directory: Path, pictures: bool, json: bool
) -> int:
    """The whole run; the exit status."""
    if pictures:
        plots.check()
    make(directory)
    plan = replace(QUICK if short else FULL, parts=tuple(dict.fromkeys(parts)))
    with err().status("") as line:
        report = Experiment(plan, directory, line.update).report()
    drawn = tx_plots.draw(report, directory) if pictures else []
    text, file = directory / "transactions.md", directory / "transactions.json"
    text.write_text(tx_page.to_page(report, drawn), encoding="utf-8")
    if json:
        plain = {"file": str(file), "page": str(text), "plots": [str(path) for path in drawn]}
        say_json(report.to_json() | plain)
    else:
        _show(report)
        say("\n" + "\n".join(map(str, (text, file, *drawn))))
    return FINE if report.kept else FAILED


def _show(report: Report) -> None:
    shown = table("", "part", "figure", "here", "unit", "the paper", "holds", right=("here",))
    for each in report.findings:
        value, holds = page.shown(each.value), figures.VERDICTS[each.holds]
        shown.add_row(each.part, each.name, value, each.unit, each.paper or "–", holds)
    out().print(shown)
    say(f"\n{report.took_s:.0f} s; {figures.describe_machine()}")
    if not report.kept:
        say("VIOLATED: an update went astray, or a regular event was lost")
