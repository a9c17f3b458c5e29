"""Commands that run until someone has seen enough, and commands that someone does not want to wait
for any longer.

Spark blocks whoever calls it, and has much to say if that is interrupted. So what uses it is done
by a thread, while the main one waits for the end, or for a signal; at a signal it says so in one
line, ends all processes that the command has started, and leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Final

from motet.cli import offspring
from motet.cli.ending import FINE, INTERRUPTED
from motet.cli.voice import remark

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LOOK_S: Final = 0.2
"""A signal wakes the main thread up, unless the system gives it to another one."""
GOES_ON: Final = "interrupted; the same command goes on from here"
ANEW: Final = "interrupted; the same command begins anew"
CLEAR_LINE: Final = "\r\x1b[2K\x1b[?25h"
"""Of a terminal: a bar may stand there, and hide the cursor."""


async def until_interrupted(work: Coroutine[Any, Any, int]) -> int:
    """The work's exit status; Ctrl-C and SIGTERM end it, and that is fine."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return FINE


# ── beside Spark ─────────────────────────────────────────────────────────────────────────


def interruptible(
    farewell: str | Callable[..., str],
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A job that may block for long. Who interrupts it is told `farewell`, which may depend on what
    the job was told."""

    def beside(job: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(job)
        def waited_for(*arguments: Any) -> int:
            if threading.current_thread() is not threading.main_thread():
                return job(*arguments)  # signals are for the main thread alone
            told = farewell if isinstance(farewell, str) else farewell(*arguments)
            return _wait(functools.partial(job, *arguments), told)

        return waited_for

    return beside


Ending = tuple[int, BaseException | None]


def _wait(job: Callable[[], int], farewell: str) -> int:
    # Of this queue alone it is said that a signal handler may use it.
    news: SimpleQueue[Ending | None] = SimpleQueue()

    def work() -> None:
        try:
            news.put((job(), None))
        except BaseException as problem:
            news.put((INTERRUPTED, problem))

    with _heard(lambda: news.put(None)):
        threading.Thread(target=work, name="job", daemon=True).start()
        while True:
            try:
                ending = news.get(timeout=LOOK_S)
            except Empty:
                continue
            if ending is not None:
                break
            if not _has_had_enough():
                leave(farewell)
    status, problem = ending
    if problem is not None:
        raise problem
    return status


@contextlib.contextmanager
def _heard(tell: Callable[[], None]) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: tell()) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Enough:
    """Whether somebody has seen enough of what goes on until then."""

    def __init__(self, told: str) -> None:
        self.told = told
        self._is_so = threading.Event()

    def __bool__(self) -> bool:
        return self._is_so.is_set()

    def say(self) -> None:
        self._is_so.set()
        remark(f"{CLEAR_LINE if sys.stderr.isatty() else ''}{self.told}")


_awaited: list[Enough] = []
"""At most one: what the job that runs would like to be told, instead of being ended."""


@contextlib.contextmanager
def until_enough(told: str) -> Iterator[Enough]:
    """For a part of a job that an interrupt is to end, but not the job: it gets `told` as an
    answer, and the job looks whether there was one. The next interrupt is one like all others."""
    enough = Enough(told)
    _awaited.append(enough)
    try:
        yield enough
    finally:
        _awaited.remove(enough)


def _has_had_enough() -> bool:
    """Whether somebody waited to hear that."""
    waiting = next((each for each in _awaited if not each), None)
    if waiting is not None:
        waiting.say()
    return waiting is not None


def leave(farewell: str) -> None:
    """At once, and with everybody: threads of Spark's would wait, and complain."""
    _say_last(farewell)
    offspring.end_all()
    if "motet.spark.scratch" in sys.modules:
        from motet.spark import scratch

        scratch.remove()
    os._exit(INTERRUPTED)


def _say_last(text: str) -> None:
    """And nobody in this process says anything behind it."""
    try:
        number = sys.stderr.fileno()
        heard = os.dup(number)
        null = os.open(os.devnull, os.O_WRONLY)
        for each in {1, 2, number}:
            os.dup2(null, each)
    except OSError:  # somebody keeps what we say, and there is no descriptor
        remark(text)
        return
    start = CLEAR_LINE if os.isatty(heard) else ""
    with contextlib.suppress(OSError):
        os.write(heard, f"{start}{text}\n".encode())
