"""Long operations on a live overlay: their progress, and what Ctrl-C does to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from motet.cli.console import err, remark
from motet.cli.interrupt import SIGNALS
from motet.errors import MotetError
from motet.runtime.loop import run

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

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


class Work(Protocol[R_co]):
    """A long operation with a report, which grows while it runs."""

    @property
    def report(self) -> R_co: ...
    async def run(self) -> R_co: ...
    def stop(self) -> None: ...


def carried_out(
    work: Work[R], state_after: Callable[[R], str], begun: Callable[[R], object]
) -> R | None:
    """The report at the end; None after the second interrupt. Says what an interrupt has left, and
    what a failure has left if the work had begun."""
    try:
        return run(stoppable(work.run(), work.stop))
    except (asyncio.CancelledError, KeyboardInterrupt):
        remark(state_after(work.report))
        return None
    except MotetError as problem:
        if begun(work.report):
            problem.add_note(state_after(work.report))
        raise


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
