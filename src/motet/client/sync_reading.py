"""Reading logs without `await`, for scripts and threads.

for batch in motet.read_sync("motet://127.0.0.1:7701", filter="level > 7"):
    print(batch.rows())
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from motet.client.log_batch import LogBatch
from motet.client.log_outline import LogOutline
from motet.client.loop_thread import Closing, LoopThread
from motet.client.reading import LogReader, open_log
from motet.protocol.reading.messages import PubendAccount


class SyncLogReader(Closing):
    """`with motet.open_log_sync(url) as log:` — the logs of one broker."""

    def __init__(self, url: str, timeout: float) -> None:
        self._thread = LoopThread()
        try:
            self._log = self._thread.call(_opened(url, timeout))
        except BaseException:
            self._thread.stop()
            raise

    def describe(self) -> tuple[PubendAccount, ...]:
        """The pubends of the broker, with their first and last ticks, sizes and cursors."""
        return self._thread.call(self._log.describe())

    def outline(self, pubend: str, **options: Any) -> LogOutline:
        """As `LogReader.outline`."""
        return self._thread.call(self._log.outline(pubend, **options))

    def set_cursor(self, name: str, tick: int, *, pubend: str | None = None) -> None:
        """As `LogReader.set_cursor`."""
        self._thread.call(self._log.set_cursor(name, tick, pubend=pubend))

    def drop_cursor(self, name: str, *, pubend: str | None = None) -> None:
        """As `LogReader.drop_cursor`."""
        self._thread.call(self._log.drop_cursor(name, pubend=pubend))

    def read(self, **options: Any) -> Iterator[LogBatch]:
        """Options as for `motet.read`."""
        batches = self._log.read(**options)
        try:
            while True:
                batch = self._thread.call(_next(batches))
                if batch is None:
                    return
                yield batch
        finally:
            if self._thread.running:
                self._thread.call(batches.aclose())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Twice is harmless."""
        if self._thread.running:
            self._thread.call(self._log.close())
            self._thread.stop()


async def _opened(url: str, timeout: float) -> LogReader:
    return open_log(url, timeout=timeout)


async def _next(batches: Any) -> LogBatch | None:
    return await anext(batches, None)


def open_log_sync(url: str, *, timeout: float = 30.0) -> SyncLogReader:
    """`motet.open_log` without `await`."""
    return SyncLogReader(url, timeout)


def read_sync(url: str, *, timeout: float = 30.0, **options: Any) -> Iterator[LogBatch]:
    """`motet.read` without `await`; options as there."""
    with open_log_sync(url, timeout=timeout) as log:
        yield from log.read(**options)
