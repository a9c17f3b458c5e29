"""Long operations on a live overlay: their progress, and what Ctrl-C does to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from motet.cli.console import err, remark
from motet.cli.interrupt import SIGNALS

T = TypeVar("T")

STOPPING = "interrupted: waiting for the moves under way; Ctrl-C again does not wait"


async def stoppable(work: Coroutine[Any, Any, T], stop: Callable[[], None]) -> T:
    """The first interrupt calls `stop`, after which the work must end soon; the second one cancels
    it."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            remark(STOPPING)
            stop()
        else:
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


class Bar(AbstractContextManager["Bar"]):
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self, title: str, json: bool) -> None:
        console = err()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[remark]}"),
            console=console,
            transient=True,
            disable=json or not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=None, remark="")

    def show(self, done: int, total: int, text: str) -> None:
        self._progress.update(self._task, completed=done, total=total, remark=text)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
