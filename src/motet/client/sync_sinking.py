"""Writing into a sink without `await`, for tasks and scripts: see `motet.client.sinking`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from motet.client import sinking
from motet.client.loop_thread import Closing, LoopThread
from motet.client.sinking import Attempt, Stage, StagedPart
from motet.model import EVERYTHING, Filter


class SyncStage(Closing):
    """`with SyncStage(url, attempt) as stage:` — one piece is on its way while the next one is
    being made."""

    def __init__(
        self,
        url: str,
        attempt: Attempt,
        advertised: Filter = EVERYTHING,
        *,
        timeout: float = sinking.TIMEOUT_S,
    ) -> None:
        self._thread = LoopThread()
        self._under_way: Future[None] | None = None

        async def opened() -> Stage:
            return sinking.open_stage(url, attempt, advertised, timeout=timeout)

        try:
            self._stage = self._thread.call(opened())
        except BaseException:
            self._thread.stop()
            raise

    def add(self, bodies: Sequence[bytes]) -> None:
        """Returns when the piece before this one is there."""
        self._wait()
        work = self._stage.add(bodies)
        self._under_way = asyncio.run_coroutine_threadsafe(work, self._thread.loop)

    def seal(self) -> StagedPart:
        self._wait()
        return self._thread.call(self._stage.seal())

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Twice is harmless."""
        if self._thread.running:
            if self._under_way is not None:
                self._under_way.cancel()
            self._thread.call(self._stage.close())
            self._thread.stop()


def commit_sync(
    url: str,
    sink: str,
    job: str,
    epoch: int | None,
    parts: Sequence[StagedPart],
    **options: Any,
) -> str:
    """`sinking.commit` without `await`."""
    return asyncio.run(sinking.commit(url, sink, job, epoch, parts, **options))


def drop_sync(url: str, sink: str, job: str, epoch: int | None, **options: Any) -> None:
    """`sinking.drop` without `await`."""
    asyncio.run(sinking.drop(url, sink, job, epoch, **options))
