"""The work of `motet demo`. Separate from the command because it imports Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from motet.cli.console import FAILED, FINE, err, out, say, say_json
from motet.cli.interrupt import ANEW, interruptible
from motet.cli.pipeline import BAR_COLUMNS, chosen, plainly
from motet.runtime.loop import run
from motet.spark.output_folder import filling
from motet.spark.quiet import own_stderr
from motet_labs.demo import promises, report
from motet_labs.demo.pipeline import check_log, check_machine
from motet_labs.demo.promises import promises_of
from motet_labs.demo.story import Sample, Wish, play


class Voice:
    """Tells the story on the console; for programs it prints only the result."""

    def __init__(self, progress: Progress, task: TaskID, json: bool) -> None:
        self._progress = progress
        self._task = task
        self._json = json
        self._acts = 0

    def act(self, title: str) -> None:
        self._acts += 1
        self._progress.update(self._task, total=None, remark=title)
        self._print(f"\n[bold]{self._acts}. {escape(title)}[/bold]")

    def say(self, text: str) -> None:
        self._print(f"  {escape(text)}")

    def _print(self, text: str) -> None:
        if self._progress.disable:
            if not self._json:
                out().print(text)
        else:
            self._progress.console.print(text)

    def progress(self, sample: Sample, total: int, remark: str) -> None:
        told = f"{sample.published:,} of {total:,} published, {sample.handled:,} handled"
        told = f"{told}, {sample.archived:,} archived, {remark}"
        # One more than there are: the demo goes on after all are published.
        self._progress.update(self._task, completed=sample.published, total=total + 1, remark=told)


def _bar() -> Progress:
    return Progress(
        SpinnerColumn(),
        BarColumn(bar_width=BAR_COLUMNS),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remark]}"),
        console=err(),
        disable=not err().is_terminal,
        transient=True,
    )


@interruptible(ANEW)
@plainly
def demo(
    log: Path | None,
    columns: Sequence[str],
    size: int,
    seconds: float,
    seed: int,
    into: Path | None,
    master: str,
    json: bool,
) -> int:
    check_machine()
    if log is not None:
        check_log(log)
    folder = into or Path("run") / time.strftime("demo-%Y%m%d-%H%M%S")
    advice = "name an empty folder with --report"
    wish = Wish(folder, log, chosen(columns), size, seconds, seed, master)
    with filling(folder, advice):
        with _hushed(), own_stderr(), _bar() as progress:
            task = progress.add_task("", total=None, remark="")
            outcome = run(play(wish, Voice(progress, task, json)))
        found = promises_of(outcome)
        kept = promises.kept(found)
        said = report.write(outcome, found)
    if json:
        say_json(said)
    else:
        say("")
        out().print(promises.table(found))
        say("\nevery promise was kept" if kept else "\nA PROMISE IS BROKEN")
        say(f"{outcome.took_s:.0f} s; the report: {said['report']}")
    return FINE if kept else FAILED


@contextmanager
def _hushed() -> Iterator[None]:
    """Silence the clients: the story tells of lost connections itself."""
    clients = logging.getLogger("motet.client")
    loudness = clients.level
    clients.setLevel(logging.ERROR)
    try:
        yield
    finally:
        clients.setLevel(loudness)
