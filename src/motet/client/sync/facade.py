"""Synchronous facades of asynchronous objects, without writing their methods again.

A facade wraps an object that lives on the event loop of another thread. Its class names the methods
and attributes that it offers; signatures, types and docstrings are those of the wrapped class.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import wraps
from typing import (
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

from motet.client.loop_guard import foreign_process
from motet.errors import ClosedError, MisuseError

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")
R = TypeVar("R")
F = TypeVar("F", bound="Facade[Any]")
C = TypeVar("C", bound="Facade[Any]")


OVER = "the client was closed"
Ending = Callable[[], Coroutine[Any, Any, None]]


class LoopThread:
    """An event loop in a thread of its own until `stop`, for callers without a loop.

    No caller waits for a loop that has stopped: what the stop interrupts, and what is submitted
    later, fails with `ClosedError`.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._lock = threading.RLock()  # a signal handler may call us while we hold it
        self._stopping = False
        """From now on nothing is scheduled. Read and set under the lock that is held for each call
        to the loop, so the thread begins, and then ends, all that was scheduled before."""
        self._endings: set[Ending] = set()
        self._thread = threading.Thread(target=self._run, name="motet-loop", daemon=True)
        self._thread.start()

    @staticmethod
    def opened(work: Coroutine[Any, Any, T]) -> tuple[T, LoopThread]:
        """Run a coroutine on the loop of a new thread; the thread ends if the coroutine fails."""
        thread = LoopThread()
        try:
            return thread.call(work), thread
        except BaseException:
            thread.stop()
            raise

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def host(self) -> Host:
        return Host(self.call, self.check_process)

    def check_process(self) -> None:
        """A forked child has a copy of the client, but neither its thread nor its session."""
        if os.getpid() != self._process:
            raise foreign_process()

    def check_caller(self) -> None:
        if threading.current_thread() is self._thread:
            raise MisuseError(
                "a synchronous call on the thread of the event loop would wait for itself; "
                "call it from another thread"
            )

    # ── work for the loop ────────────────────────────────────────────────────────────────

    def soon(self, callback: Callable[[], object]) -> None:
        """Call it on the loop; `ClosedError` if the loop stops."""
        self.check_process()  # before the lock, which the parent may have held
        with self._lock:
            self._check_running()
            try:
                self.loop.call_soon_threadsafe(callback)
            except RuntimeError:  # a signal handler has stopped it just now
                raise ClosedError(OVER) from None

    def submit(
        self, work: Coroutine[Any, Any, T], before: Callable[[], Awaitable[object]] | None = None
    ) -> Future[T]:
        """Run a coroutine on the loop, after `before`. To cancel the result cancels it there."""
        result: Future[T] = Future()

        async def in_order() -> T:
            if before is not None:
                await before()
            return await work

        def begin() -> None:
            task = self.loop.create_task(in_order())
            task.add_done_callback(settle)
            result.add_done_callback(lambda _: cancel(task))

        def cancel(task: asyncio.Task[T]) -> None:
            if result.cancelled():
                with suppress(ClosedError):  # then it is cancelled anyway
                    self.soon(task.cancel)

        def settle(task: asyncio.Task[T]) -> None:
            work.close()  # it may never have run
            problem = CancelledError() if task.cancelled() else task.exception()
            if not result.set_running_or_notify_cancel():
                return
            if problem is None:
                result.set_result(task.result())
            else:
                stopped = self._stopping and task.cancelled()
                result.set_exception(ClosedError(OVER) if stopped else problem)

        try:
            self.soon(begin)
        except BaseException:
            work.close()
            raise
        return result

    def call(
        self, work: Coroutine[Any, Any, T], before: Callable[[], Awaitable[object]] | None = None
    ) -> T:
        """Run a coroutine on the loop, after `before`, and wait for it; an interrupt here cancels
        it there."""
        try:
            self.check_caller()
        except BaseException:
            work.close()
            raise
        future = self.submit(work, before)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    # ── the end ──────────────────────────────────────────────────────────────────────────

    def at_stop(self, ending: Ending) -> None:
        """Run it on the loop when that stops, before what is left there is cancelled."""
        with self._lock:
            self._check_running()
            self._endings.add(ending)

    def not_at_stop(self, ending: Ending) -> None:
        with self._lock:
            self._endings.discard(ending)

    def _check_running(self) -> None:
        if self._stopping:
            raise ClosedError(OVER)

    def finish(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run `close` on the loop, and stop the thread, even if that fails. Idempotent."""
        if not self.running:
            return
        self.check_caller()
        try:
            self.call(close())
        except ClosedError:
            if not self._stopping:  # by another thread
                raise
        finally:
            self.stop()

    def stop(self) -> None:
        """Returns when the thread has ended. Idempotent."""
        with self._lock:
            if not self._stopping:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._stopping = True
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._lock:
                self._stopping = True
            self.loop.run_until_complete(self._wind_up())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    async def _wind_up(self) -> None:
        await asyncio.gather(*(ending() for ending in self._endings), return_exceptions=True)
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


class RunOnLoop(Protocol):
    """Runs a coroutine on the event loop, after all earlier publications, and waits for its
    result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Host(NamedTuple):
    """The loop of the wrapped objects."""

    run: RunOnLoop
    check_process: Callable[[], None]
    """Raises in a forked child, to which the client does not belong."""


class Facade(Generic[W]):
    """A synchronous object that wraps an asynchronous one. `with` acts as `async with` would."""

    def __init__(self, wrapped: W, host: Host) -> None:
        self._wrapped = wrapped
        self._host = host
        self._run = host.run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        wrapped: Any = self._wrapped
        self._run(wrapped.__aexit__(*raised))

    def _tell(self, work: Callable[[], T]) -> T:
        """Run a plain function on the event loop's thread."""

        async def done() -> T:
            return work()

        return self._run(done())

    def _look(self, work: Callable[[], T]) -> T:
        """As `_tell`, also after the end of the client: then the loop changes nothing any more."""
        with suppress(ClosedError):
            return self._tell(work)
        return work()

    def __repr__(self) -> str:
        return f"<Sync{repr(self._wrapped)[1:]}"


def blocking(
    method: Callable[Concatenate[W, P], Awaitable[T]],
) -> Callable[Concatenate[Facade[W], P], T]:
    """The same method, but it blocks until the result is there."""
    return opening(method, lambda found, _: found)


def opening(
    method: Callable[Concatenate[W, P], Awaitable[T]], facade: Callable[[T, F], R]
) -> Callable[Concatenate[F, P], R]:
    """The same method, blocking; `facade` wraps its result in a synchronous object, on the loop."""

    @wraps(method)
    def call(self: F, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def work() -> R:
            return facade(await method(self._wrapped, *args, **kwargs), self)

        return self._run(work())

    return call


def taking(
    method: Callable[Concatenate[W, Any, P], Awaitable[T]], kind: type[C], other: type[R]
) -> Callable[Concatenate[Facade[W], C | R, P], T]:
    """The same method, blocking; its argument is a facade of type `kind`, or an `other`."""

    name = list(inspect.signature(method).parameters)[1]

    def unwrapped(what: object) -> object:
        if not isinstance(what, kind | other):
            raise MisuseError(
                f"{method.__name__} takes a {kind.__name__} or {other.__name__}, not {what!r}"
            )
        return what._wrapped if isinstance(what, Facade) else what

    @wraps(method)
    def call(self: Facade[W], /, *args: Any, **kwargs: Any) -> T:
        if args:
            args = (unwrapped(args[0]), *args[1:])
        elif name in kwargs:
            kwargs[name] = unwrapped(kwargs[name])

        async def work() -> T:
            return await method(self._wrapped, *args, **kwargs)

        return self._run(work())

    return call


def iterate(run: RunOnLoop, items: AsyncIterator[T]) -> Iterator[T]:
    """The same items without `await`; closing this iterator closes `items`."""
    try:
        while found := run(_following(items)):
            yield from found
    finally:
        with suppress(ClosedError):
            run(_closed(items))


async def _following(items: AsyncIterator[T]) -> list[T]:
    """The next item in a list, or an empty list at the end."""
    try:
        return [await anext(items)]
    except StopAsyncIteration:
        return []


async def _closed(items: Any) -> None:
    if hasattr(items, "aclose"):
        await items.aclose()


class Forwarded(Generic[T]):
    """The attribute of the same name. With `on_loop`, it is read on the event loop's thread."""

    def __init__(self, *, on_loop: bool = False) -> None:
        self._on_loop = on_loop

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, facade: None, owner: type) -> Self: ...

    @overload
    def __get__(self, facade: Facade[Any], owner: type) -> T: ...

    def __get__(self, facade: Facade[Any] | None, owner: type) -> Self | T:
        if facade is None:
            return self

        def read() -> T:
            found: T = getattr(facade._wrapped, self._name)
            return found

        return facade._look(read) if self._on_loop else read()
