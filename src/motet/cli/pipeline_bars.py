"""What jobs of Spark are doing, while they do it: a line on standard error, if that is a
terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from motet.cli.voice import err

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFRESH_S = 0.3
BAR_COLUMNS = 24


def bar(unit: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=BAR_COLUMNS),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("{task.fields[remark]}"),
        console=err(),
        disable=not err().is_terminal,
    )


@contextmanager
def watched(spark: SparkSession, what: str) -> Iterator[None]:
    """Show how many tasks of the jobs that run now are done."""
    progress = bar("tasks")
    over = threading.Event()

    def look() -> None:
        with suppress(Exception):  # if Spark is gone, whoever waits for the job is told
            show()

    def show() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(REFRESH_S):
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            known: list[Any] = [each for each in stages if each is not None]
            total = sum(each.numTasks for each in known)
            done = sum(each.numCompletedTasks for each in known)
            names = ", ".join(dict.fromkeys(each.name.split(" at ")[0] for each in known))
            progress.update(task, completed=done, total=total or None, remark=names)

    with progress:
        task = progress.add_task(what, total=None, remark="")
        looking = threading.Thread(target=look, daemon=True)
        if not progress.disable:
            looking.start()
        try:
            yield
        finally:
            over.set()
            if looking.is_alive():
                looking.join()
