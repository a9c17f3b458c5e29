"""Running a program on the best event loop there is, with all that the system gives it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

COLLECT_AFTER = 50_000
"""Objects between collections of the young. A broker makes many that die by counting alone."""


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def loop_name() -> str:
    """What `run` uses here."""
    return "asyncio" if _loop_factory() is None else "uvloop"


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on uvloop where it is installed, else on asyncio's own loop."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


@contextlib.contextmanager
def growing() -> Iterator[None]:
    """While very much is made and nothing let go of: to look for garbage again and again would
    take longer than the work itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # else the next look would be at all of it
        if was_enabled:
            gc.enable()


def take_all_descriptors() -> None:
    """Every client costs one, and without one the journal cannot go on: use all we may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems promise more than they give
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_memory() -> None:
    """For a process that has started and now only serves: what is there now is never garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)
