"""Writing into a sink: rows are staged by whoever has them, and committed as one transaction.

    async with open_stage(url, Attempt("levels", job, epoch, partition, name), EVERYTHING) as stage:
        await stage.add(bodies)
        part = await stage.seal()                        # durable, and seen by nobody
    await commit(url, "levels", job, epoch, [part, …])   # all of it is published, once

See decision 29. What happens in between (a crash, a second attempt) nobody sees.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from motet.client.connecting import connect
from motet.client.reading import LogReader
from motet.client.standing import Advertisement
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
from motet.runtime.redial import Backoff

__all__ = [
    "MOST_BYTES",
    "MOST_ROWS",
    "Attempt",
    "Stage",
    "StagedPart",
    "commit",
    "drop",
    "open_stage",
]

ADVERTISED: Final = "sink"
"""The name of a sink's advertisement."""
TIMEOUT_S: Final = 60.0
SLOWEST_ROWS_PER_S: Final = 20_000
"""A broker that copies fewer is not slow, but stuck."""


class Stage(LogReader):
    """Where the rows of one attempt go."""

    def __init__(self, url: str, attempt: Attempt, advertised: Filter, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        self._has_met = True  # a sink's home is somewhere: if it is away, it is waited for
        self._attempt = attempt
        self._advertised = advertised
        self._pieces = 0

    async def add(self, bodies: Sequence[bytes]) -> None:
        """Rows, as encoded events: at most `MOST_ROWS`, and `MOST_BYTES` unless it is one."""
        request = RowsRequest(
            *(PROTOCOL_VERSION, self._next(), self._attempt, self._pieces, self._advertised),
            [Raw(each) for each in bodies],
        )
        await self._ask(request, RowsStaged)
        self._pieces += 1

    async def seal(self) -> StagedPart:
        """All rows are in: returns when they are durable."""
        request = SealRequest(PROTOCOL_VERSION, self._next(), self._attempt, self._pieces)
        return (await self._ask(request, Sealed)).part

    async def drop(self, sink: str, job: str, epoch: int) -> None:
        request = DropRequest(PROTOCOL_VERSION, self._next(), sink, job, epoch)
        await self._ask(request, Dropped)


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
    """A batch will not be committed. Nothing happens if it has been."""
    attempt = Attempt(sink, job, epoch or 0, 0, "-")
    async with open_stage(url, attempt, timeout=timeout) as stage:
        await stage.drop(sink, job, epoch or 0)


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
    """Publish what is staged in these parts, in their order, as one transaction; returns its id
    when all of it is in the log.

    `job` is a query, and `epoch` the number of its batch: one that is not above the last committed
    one changes nothing. Or it is a batch write, without an epoch; of those with the same key, one
    is committed. `timeout` is for the broker to answer, and more is allowed for many rows.
    `OutcomeUnknown` if it has not: commit it again. `StagingLost` if rows are gone: then nothing
    has happened. `SinkTaken` if another query writes into this sink, unless this one takes it over.
    """
    if not sink:
        raise MisuseError("a sink has a name")
    copying_s = sum(part.rows for part in parts) / SLOWEST_ROWS_PER_S
    said = (job, epoch, tuple(parts), advertised, key, takeover, timeout + copying_s)
    backoff, until_s = Backoff(), time.monotonic() + timeout
    while True:
        try:
            return await _commit(url, sink, CommitRequest(0, *said), timeout)
        except (Disconnected, Fenced) as problem:
            # A sink's home is somewhere: it is waited for. And of two who commit at once, the one
            # that was fenced off by the other asks again: what is committed is not twice.
            wait_s = backoff.wait_s()
            if time.monotonic() + wait_s > until_s:
                raise type(problem)(f"{problem} (tried for {timeout:g} s)") from problem
            await asyncio.sleep(wait_s)


async def _commit(url: str, sink: str, request: CommitRequest, timeout: float) -> str:
    advertised = request.advertised
    async with connect(
        url, client_id=sink, durable=True, connect_timeout=min(timeout, 30.0)
    ) as client:
        known = [each for each in client.standing if isinstance(each, Advertisement)]
        if all(each.filter != advertised for each in known):
            for each in known:
                await client.unadvertise(each, wait="local")
            await client.advertise(advertised, name=ADVERTISED, timeout=timeout)
        return await client._conversation.ask(request)
