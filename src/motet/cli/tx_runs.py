"""One run of `motet experiment transactions`: what it does now, its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from motet.cli.trial_runs import Paper, make, show_findings, tell
from motet.cli.voice import err
from motet.experiments import tx_page, tx_plots
from motet.experiments.transactions import FULL, QUICK, Experiment
from motet.pictures import check as check_pictures


def transactions(
    parts: Sequence[str], short: bool, directory: Path, pictures: bool, json: bool
) -> int:
    """The whole run; the exit status."""
    if pictures:
        check_pictures("or leave them out with --no-plots")
    make(directory)
    plan = replace(QUICK if short else FULL, parts=tuple(dict.fromkeys(parts)))
    with err().status("") as line:
        report = Experiment(plan, directory, line.update).report()
    drawn = tx_plots.draw(report, directory) if pictures else []
    paper = Paper(directory, "transactions", tx_page.to_page(report, drawn), drawn)
    violation = "an update went astray, or a regular event was lost"
    return tell(report, paper, None if json else partial(show_findings, report, violation))
