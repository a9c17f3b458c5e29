"""Durable clients that publish a plan, in its order and at its pace, and go on where they were.

The k-th event of a publisher is the k-th of its session, and its broker knows how many of those it
has taken: so a run that was killed goes on behind the last one, and nothing is published twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from motet.client.client import Client
from motet.client.connecting import connect
from motet.errors import MisuseError, NotAdvertised, UnavailableError
from motet.model.events import Event
from motet.model.filters import Filter
from motet.model.values import Value
from motet.spark.replay.files import name_within
from motet.spark.replay.plan import BEGUN, DONE, Plan, alone
from motet.spark.replay.rows import event_of
from motet.spark.replay.speed import Pace, Speed

log = logging.getLogger("motet.spark")

EVERYTHING: Final = "true"
TELL_ROWS: Final = 256
CONNECT_S: Final = 10.0
LEAVE_S: Final = 1.0
"""After a failure: how long brokers are waited for."""


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
        with alone(Path(self._plan.folder)):
            return await self._run()

    async def _run(self) -> Told:
        plan = self._plan
        self._began_s = time.monotonic()
        if plan.is_done:
            self._before = plan.rows
            return self._told()
        plan.check()
        await self._check_events()
        clients: list[Client] = []
        try:
            for publisher in range(plan.publishers):
                clients.append(await self._client(publisher))
                await clients[-1].advertise(self._advertise, name="replay")
            skips = [
                self._published_by(client, share)
                for client, share in zip(clients, plan.shares, strict=True)
            ]
            plan.remember(BEGUN)
            await self._publish(clients, skips)
            for client in clients:
                await client.flush()
            plan.remember(DONE)
        except BaseException:
            await _leave(clients, patience=LEAVE_S)
            raise
        await _leave(clients, forget=True)
        return self._told()

    async def _client(self, publisher: int) -> Client:
        url = self._brokers[publisher % len(self._brokers)]
        name = self._plan.client_id(publisher)
        return await connect(url, client_id=name, durable=True, connect_timeout=CONNECT_S)

    async def _check_events(self) -> None:
        """All of them, before the first is published: nothing is to be published half."""
        space = Filter.parse(self._advertise)
        for rows in self._plan.batches():
            for row in rows:
                try:
                    event = Event(*self._event(row))
                    if not space.matches(event):
                        raise NotAdvertised(f"it lies outside of what is advertised, {space}")
                except MisuseError as problem:
                    where = f"{name_within(row['_file'], self._plan.source)}, row {row['_row']}"
                    raise type(problem)(
                        f"{self._plan.source}: nothing was published, since {where} (from 0) is no "
                        f"event: {problem}"
                    ) from None
            await asyncio.sleep(0)  # others may use this loop

    def _event(self, row: Mapping[str, Any]) -> tuple[dict[str, Value], bytes]:
        attributes, payload = event_of(row)
        if self._keys:
            attributes["source.file"] = name_within(row["_file"], self._plan.source)
            attributes["source.row"] = row["_row"]
        return attributes, payload

    def _published_by(self, client: Client, share: int) -> int:
        if not client.resumed and self._plan.has(BEGUN):
            raise UnavailableError(
                f"an earlier run has published some of this, but the session of {client.client_id} "
                f"is gone, so nobody knows how much; --run NAME begins anew, from the first event"
            )
        if client.published > share:
            raise UnavailableError(
                f"{client.client_id} has published {client.published:,} events, more than the "
                f"{share:,} that the plan has for it: has somebody else used its name?"
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
                await clients[publisher].publish(*self._event(row))
                self._published += 1
                if not self._published % TELL_ROWS:
                    self._tell(self._told())

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


async def _leave(clients: Sequence[Client], **how: Any) -> None:
    """All of them, whatever becomes of one: how the replay has ended is settled by now."""
    left = await asyncio.gather(*(each.close(**how) for each in clients), return_exceptions=True)
    for client, problem in zip(clients, left, strict=True):
        if problem is not None:
            log.warning("%s has not said goodbye to its broker: %s", client.client_id, problem)
