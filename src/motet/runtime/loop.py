"""Runs a program on the fastest event loop available, with all descriptors the system allows."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

COLLECT_AFTER = 50_000
"""Allocations between young collections. Reference counting frees most objects of a broker."""


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def loop_name() -> str:
    """The event loop that `run` uses here."""
    return "asyncio" if _loop_factory() is None else "uvloop"


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on uvloop if it is installed, otherwise on asyncio's own loop."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


@contextlib.contextmanager
def growing() -> Iterator[None]:
    """Garbage collection is off while very many objects are created and none are freed: repeated
    collections would take longer than the work itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # otherwise the next collection would traverse all of it
        if was_enabled:
            gc.enable()


def take_all_descriptors() -> None:
    """Raise the limit of open files: each client needs one, and the journal fails without one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems grant less than this
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settle_memory() -> None:
    """For a process that has started and now only serves: no object that exists now is garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 50)
