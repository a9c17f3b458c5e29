"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from motet.errors import ClosedError, MisuseError

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in the background until `stop`."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="motet-loop", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def check_process(self) -> None:
        """A forked child has a copy of the client, but neither its thread nor its session."""
        if os.getpid() != self._process:
            raise MisuseError("this client belongs to the parent process; connect again after fork")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; interrupted here, it is cancelled there."""
        try:
            self.check_process()
        except MisuseError:
            work.close()
            raise
        if not self.running:
            work.close()
            raise ClosedError("the client was closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise MisuseError("a synchronous call on the event loop's own thread would wait for it")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self.running:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


class Closing(ABC):
    """Something that a `with` closes, however it ends."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
