"""Writing into a sink: processes stage rows, and one of them commits all as one transaction.

    async with open_stage(url, Attempt("levels", job, epoch, partition, name), EVERYTHING) as stage:
        await stage.add(bodies)
        part = await stage.seal()                        # durable, but not visible
    await commit(url, "levels", job, epoch, [part, …])   # all of it is published, once

See decision 29. Subscribers do not notice crashes or repeated attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import wraps
from typing import Any, Final, ParamSpec, Self, TypeVar

from msgspec import Raw

from motet.client.channel import RequestChannel
from motet.client.client import connect
from motet.client.subscription import Advertisement
from motet.client.sync.facade import Facade, LoopThread
from motet.errors import Disconnected, Fenced, MisuseError
from motet.model import EVERYTHING, Filter
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.session.messages import CommitRequest
from motet.protocol.sinks.messages import (
    MOST_BYTES,
    MOST_ROWS,
    Attempt,
    Dropped,
    DropRequest,
    RowsRequest,
    RowsStaged,
    Sealed,
    SealRequest,
    StagedPart,
)
from motet.runtime.redial import retry

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "MOST_BYTES",
    "MOST_ROWS",
    "Attempt",
    "Stage",
    "StagedPart",
    "SyncStage",
    "commit",
    "commit_sync",
    "drop",
    "drop_sync",
    "open_stage",
]

ADVERTISED: Final = "sink"
"""The name of a sink's advertisement."""
TIMEOUT_S: Final = 60.0
SLOWEST_ROWS_PER_S: Final = 20_000
"""A broker that copies fewer is considered stuck."""


class Stage:
    """Stages the rows of one attempt at the home of its sink. If that broker is unreachable, the
    stage waits for it."""

    def __init__(self, url: str, attempt: Attempt, advertised: Filter, timeout_s: float) -> None:
        self._channel = RequestChannel(url, timeout_s, "always")
        self._attempt = attempt
        self._advertised = advertised
        self._pieces = 0

    async def add(self, bodies: Sequence[bytes]) -> None:
        """Add rows, as encoded events: at most `MOST_ROWS`, and `MOST_BYTES` unless it is one."""
        request = RowsRequest(
            *(PROTOCOL_VERSION, self._channel.next_number(), self._attempt, self._pieces),
            *(self._advertised, [Raw(each) for each in bodies]),
        )
        await self._channel.ask(request, RowsStaged)
        self._pieces += 1

    async def seal(self) -> StagedPart:
        """Finish the rows; returns when they are durable."""
        number = self._channel.next_number()
        request = SealRequest(PROTOCOL_VERSION, number, self._attempt, self._pieces)
        return (await self._channel.ask(request, Sealed)).part

    async def close(self) -> None:
        """Idempotent."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def open_stage(
    url: str,
    attempt: Attempt,
    advertised: Filter = EVERYTHING,
    *,
    timeout: float = TIMEOUT_S,
) -> Stage:
    return Stage(url, attempt, advertised, timeout)


async def drop(
    url: str, sink: str, job: str, epoch: int | None, *, timeout: float = TIMEOUT_S
) -> None:
    """Discard what is staged for a batch. Does nothing if the batch was committed."""
    async with RequestChannel(url, timeout, "always") as channel:
        request = DropRequest(PROTOCOL_VERSION, channel.next_number(), sink, job, epoch or 0)
        await channel.ask(request, Dropped)


async def commit(
    url: str,
    sink: str,
    job: str,
    epoch: int | None,
    parts: Sequence[StagedPart],
    *,
    advertised: Filter = EVERYTHING,
    key: str = "",
    takeover: bool = False,
    timeout: float = TIMEOUT_S,
) -> str:
    """Publish the rows staged in these parts, in their order, as one transaction; returns its id
    when all of them are in the log.

    `job` is a query, and `epoch` the number of its batch: a number that is not above the last
    committed one changes nothing. Or `job` is a batch write, without an epoch; at most one with the
    same key commits. `timeout` limits all attempts together; copying many rows may take longer.
    `OutcomeUnknown` if the broker did not answer: commit the batch again. `StagingLost` if rows
    are gone: nothing was published. `SinkTaken` if another query writes into this sink, unless
    `takeover` is set.
    """
    if not sink:
        raise MisuseError("a sink needs a name: `sink` is empty")
    copying_s = sum(part.rows for part in parts) / SLOWEST_ROWS_PER_S

    async def attempt(left_s: float) -> str:
        said = (job, epoch, tuple(parts), advertised, key, takeover, left_s + copying_s)
        return await _commit(url, sink, CommitRequest(0, *said), left_s)

    # A sink's home may be unreachable for a while. Of two processes that commit at once, one fences
    # the other, which retries: a committed batch is not committed twice.
    return await retry(attempt, timeout, lambda problem: isinstance(problem, Disconnected | Fenced))


async def _commit(url: str, sink: str, request: CommitRequest, timeout: float) -> str:
    advertised = request.advertised
    async with connect(url, client_id=sink, durable=True, connect_timeout=timeout) as client:
        known = [each for each in client.registrations if isinstance(each, Advertisement)]
        if all(each.filter != advertised for each in known):
            for each in known:
                await client.unadvertise(each, wait="local")
            await client.advertise(advertised, name=ADVERTISED, timeout=timeout)
        return await client._driver.answers.ask(request)


# ── without `await` ──────────────────────────────────────────────────────────────────────


class SyncStage(Facade[Stage]):
    """`with SyncStage(url, attempt) as stage:` — sends one piece while the next one is made."""

    def __init__(
        self,
        url: str,
        attempt: Attempt,
        advertised: Filter = EVERYTHING,
        *,
        timeout: float = TIMEOUT_S,
    ) -> None:
        async def opened() -> Stage:
            return open_stage(url, attempt, advertised, timeout=timeout)

        stage, self._thread = LoopThread.opened(opened())
        super().__init__(stage, self._thread.host)
        self._under_way: Future[None] | None = None

    def add(self, bodies: Sequence[bytes]) -> None:
        """Returns when the previous piece is staged."""
        self._wait()
        work = self._wrapped.add(bodies)
        self._under_way = self._thread.submit(work)

    def seal(self) -> StagedPart:
        self._wait()
        return self._run(self._wrapped.seal())

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Idempotent."""
        if self._under_way is not None:
            self._under_way.cancel()
        self._thread.finish(self._wrapped.close)

    def __exit__(self, *_: object) -> None:
        self.close()


def _without_await(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run(function(*args, **kwargs))

    return call


commit_sync = _without_await(commit)
drop_sync = _without_await(drop)
