"""Durable clients that publish a plan, in its order and at its pace, and go on where they were.

The k-th event of a publisher is the k-th of its session, and its broker knows how many of those it
has taken: so a run that was killed goes on behind the last one, and nothing is published twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from motet.client.client import Client
from motet.client.connecting import connect
from motet.errors import MisuseError, UnavailableError
from motet.spark.replay.plan import BEGUN, DONE, Plan
from motet.spark.replay.rows import event_of
from motet.spark.replay.speed import Pace, Speed

EVERYTHING: Final = "true"
TELL_ROWS: Final = 256
CONNECT_S: Final = 10.0


class Told(Struct, frozen=True):
    """How far a replay is, or what has become of it."""

    rows: int
    before: int
    """Published by earlier runs."""
    published: int
    """Published by this one."""
    behind_s: float
    """How late the latest event was."""
    took_s: float

    @property
    def per_s(self) -> float:
        return self.published / self.took_s if self.took_s > 0 else 0.0


class Replay:
    def __init__(
        self,
        plan: Plan,
        brokers: Sequence[str],
        speed: Speed,
        *,
        advertise: str = EVERYTHING,
        keys: bool = False,
        tell: Callable[[Told], None] = lambda _: None,
    ) -> None:
        if not brokers:
            raise MisuseError("a replay needs the address of a broker")
        self._plan = plan
        self._brokers = sorted(brokers)  # in whichever order they are named, sessions stay put
        self._factor = speed.factor_for(plan.span_s)
        self._advertise = advertise
        self._keys = keys
        self._tell = tell
        self._before = 0
        self._published = 0
        self._behind_s = 0.0
        self._began_s = 0.0

    async def run(self) -> Told:
        plan = self._plan
        self._began_s = time.monotonic()
        if plan.has(DONE):
            self._before = plan.rows
            return self._told()
        clients: list[Client] = []
        try:
            for publisher in range(plan.publishers):
                clients.append(await self._client(publisher))
            skips = [self._published_by(client) for client in clients]
            plan.remember(BEGUN)
            await self._publish(clients, skips)
            for client in clients:
                await client.flush()
            plan.remember(DONE)
        except BaseException:
            for client in clients:
                await client.close(patience=1.0)
            raise
        for client in clients:
            await client.close(forget=True)
        return self._told()

    async def _client(self, publisher: int) -> Client:
        url = self._brokers[publisher % len(self._brokers)]
        name = self._plan.client_id(publisher)
        client = await connect(url, client_id=name, durable=True, connect_timeout=CONNECT_S)
        await client.advertise(self._advertise, name="replay")
        return client

    def _published_by(self, client: Client) -> int:
        if not client.resumed and self._plan.has(BEGUN):
            raise UnavailableError(
                f"an earlier run has published some of this, but the session of {client.client_id} "
                f"is gone, so nobody knows how much; --run NAME begins anew, from the first event"
            )
        return client.published

    async def _publish(self, clients: Sequence[Client], skips: list[int]) -> None:
        pace: Pace | None = None
        self._before = sum(skips)
        for rows in self._plan.batches():
            for row in rows:
                publisher = row["_publisher"]
                if skips[publisher]:
                    skips[publisher] -= 1
                    continue
                now_s = time.monotonic()
                if pace is None:
                    pace = Pace(self._factor, row["_time_us"], now_s)
                if self._factor is not None:
                    await self._wait(pace.due_s(row["_time_us"]), now_s)
                attributes, payload = event_of(row)
                if self._keys:
                    attributes["source.file"] = row["_file"].rpartition("/")[2]
                    attributes["source.row"] = row["_row"]
                await clients[publisher].publish(attributes, payload)
                self._published += 1
                if not self._published % TELL_ROWS:
                    self._tell(self._told())
        if any(skips):
            raise UnavailableError(
                "the sessions of this replay have published more than is in its plan: has somebody "
                "else used their names?"
            )

    async def _wait(self, due_s: float, now_s: float) -> None:
        if due_s > now_s:
            self._tell(self._told())
            await asyncio.sleep(due_s - now_s)
        else:
            self._behind_s = max(self._behind_s, now_s - due_s)

    def _told(self) -> Told:
        return Told(
            self._plan.rows,
            self._before,
            self._published,
            self._behind_s,
            time.monotonic() - self._began_s,
        )
