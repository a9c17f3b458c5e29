"""What `motet demo` does. Apart from the command because it imports Spark."""

from __future__ import annotations

import logging
import os
import sys
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

from motet.cli.ending import FAILED, FINE
from motet.cli.interrupt import ANEW, interruptible
from motet.cli.pipeline_bars import BAR_COLUMNS
from motet.cli.pipeline_jobs import chosen, plainly
from motet.cli.voice import err, out, say, say_json
from motet.demo import promises, report
from motet.demo.chronicle import Sample
from motet.demo.judging import promises_of
from motet.demo.outcome import Wish
from motet.demo.pipeline import check_log, check_machine
from motet.demo.story import play
from motet.runtime.loop import run
from motet.spark.filling import filling


class Voice:
    """Tells the story on the console; to programs nothing but what it comes to."""

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
        # One more than there are: when all are published, it is not over.
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
        with _hushed(), _own_errors(), _bar() as progress:
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
    """The story tells of lost connections itself."""
    clients = logging.getLogger("motet.client")
    loudness = clients.level
    clients.setLevel(logging.ERROR)
    try:
        yield
    finally:
        clients.setLevel(loudness)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Our standard error is another descriptor than that of processes that we start: theirs may go
    elsewhere meanwhile."""
    before = sys.stderr
    try:
        number = os.dup(before.fileno())
    except OSError:  # somebody keeps what we say, and there is no descriptor
        yield
        return
    with os.fdopen(number, "w", encoding="utf-8", errors="replace") as own:
        sys.stderr = own
        try:
            yield
        finally:
            sys.stderr = before
