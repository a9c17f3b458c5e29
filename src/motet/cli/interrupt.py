"""Handling of Ctrl-C and SIGTERM: commands that run until interrupted, and long jobs.

A call into Spark blocks, and prints a lot if it is interrupted. So a job that uses Spark runs in a
thread, while the main thread waits for its end or for a signal; at a signal it prints one line,
ends all processes that the command has started, and exits.
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

from motet.cli.console import FINE, INTERRUPTED, remark

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LOOK_S: Final = 0.2
"""A signal wakes up the main thread, unless the system delivers it to another one."""
GOES_ON: Final = "interrupted; run the same command again to continue"
ANEW: Final = "interrupted; the same command starts from the beginning"
CLEAR_LINE: Final = "\r\x1b[2K\x1b[?25h"
"""Clears the line of a terminal, which may show a bar, and shows the cursor again."""


async def until_interrupted(work: Coroutine[Any, Any, int]) -> int:
    """The work's exit status; Ctrl-C and SIGTERM end it successfully."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return FINE


# ── jobs that use Spark ──────────────────────────────────────────────────────────────────


def interruptible(
    farewell: str | Callable[..., str],
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A job that may block for long. If it is interrupted, `farewell` is printed, which may depend
    on the job's options."""

    def beside(job: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(job)
        def waited_for(*arguments: Any, **options: Any) -> int:
            work = functools.partial(job, *arguments, **options)
            if threading.current_thread() is not threading.main_thread():
                return work()  # only the main thread receives signals
            return _wait(work, farewell if isinstance(farewell, str) else farewell(**options))

        return waited_for

    return beside


Ending = tuple[int, BaseException | None]


def _wait(job: Callable[[], int], farewell: str) -> int:
    # The only queue that is documented as safe in a signal handler.
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
            if not _takes_stop_request():
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


class StopRequest:
    """Whether the user has ended a part of a job."""

    def __init__(self, told: str) -> None:
        self.told = told
        self._is_so = threading.Event()

    def __bool__(self) -> bool:
        return self._is_so.is_set()

    def say(self) -> None:
        self._is_so.set()
        remark(f"{CLEAR_LINE if sys.stderr.isatty() else ''}{self.told}")


_awaited: list[StopRequest] = []
"""At most one: the part of the running job that an interrupt ends, instead of the job."""


@contextlib.contextmanager
def until_stop_request(told: str) -> Iterator[StopRequest]:
    """For a part of a job: an interrupt ends that part, not the job. It prints `told`, and the job
    checks whether it happened. The next interrupt ends the job."""
    request = StopRequest(told)
    _awaited.append(request)
    try:
        yield request
    finally:
        _awaited.remove(request)


def _takes_stop_request() -> bool:
    """Whether the interrupt ended a part of a job, and not the job."""
    waiting = next((each for each in _awaited if not each), None)
    if waiting is not None:
        waiting.say()
    return waiting is not None


def leave(farewell: str) -> None:
    """End this process and its descendants at once: threads of Spark would wait, and complain."""
    from motet.fleet.process import end_descendants  # most commands need no processes

    _say_last(farewell)
    end_descendants()
    if "motet.spark.session" in sys.modules:
        from motet.spark.session import remove_scratch

        remove_scratch()
    os._exit(INTERRUPTED)


def _say_last(text: str) -> None:
    """Print a last line; nothing in this process prints after it."""
    try:
        number = sys.stderr.fileno()
        heard = os.dup(number)
        null = os.open(os.devnull, os.O_WRONLY)
        for each in {1, 2, number}:
            os.dup2(null, each)
    except OSError:  # standard error is captured, without a descriptor
        remark(text)
        return
    start = CLEAR_LINE if os.isatty(heard) else ""
    with contextlib.suppress(OSError):
        os.write(heard, f"{start}{text}\n".encode())
