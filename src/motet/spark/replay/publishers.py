"""Durable clients that publish a plan in its order and at its pace, and resume after a crash.

The k-th event of a publisher is the k-th of its session, and the broker knows how many of them it
has accepted. So a run that was killed continues after the last one, and nothing is published twice.

Nulls of a row are omitted; values that attributes cannot hold are written as text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from motet.client import Client, connect
from motet.errors import EventError, MisuseError, NotAdvertised, UnavailableError
from motet.model.events import Event
from motet.model.filters import Filter
from motet.model.values import Value
from motet.spark.replay.files import name_within
from motet.spark.replay.kinds import is_exact
from motet.spark.replay.plan import BEGUN, DONE, PACKED, PAYLOAD, PREFIX, ReplayPlan, alone

# ── speed ────────────────────────────────────────────────────────────────────────────────

_FORM: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>x|s|m|h)\Z")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Speed(Struct, frozen=True):
    factor: float = 0.0
    """Multiple of the original speed; 0: see `within_s`."""
    within_s: float = 0.0
    """Duration of the whole replay; if this is 0 as well: as fast as possible."""

    @classmethod
    def parse(cls, text: str) -> Speed:
        word = text.strip().lower()
        if word == "max":
            return cls()
        found = _FORM.match(word)
        number = float(found["number"]) if found else 0.0
        if found is None or number <= 0:
            raise MisuseError(f"a speed is like 10x, 90s (all of it in 90 s) or max, not {text!r}")
        if found["unit"] == "x":
            return cls(factor=number)
        return cls(within_s=number * _SECONDS[found["unit"]])

    def factor_for(self, span_s: float) -> float | None:
        """The factor for a log of this duration; None: as fast as possible."""
        if self.factor:
            return self.factor
        return span_s / self.within_s if self.within_s and span_s > 0 else None


class Pace:
    """When each event is due."""

    def __init__(self, factor: float | None, first_us: int, began_s: float) -> None:
        self._factor = factor
        self._first_us = first_us
        self._began_s = began_s

    def due_s(self, time_us: int) -> float:
        """On the same clock as `began_s`."""
        if self._factor is None:
            return self._began_s
        return self._began_s + (time_us - self._first_us) / 1e6 / self._factor


# ── rows as events ───────────────────────────────────────────────────────────────────────

_decode: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode


def event_of(row: Mapping[str, Any]) -> tuple[dict[str, Value], bytes]:
    """Attributes and payload."""
    if row.get(PACKED) is not None:
        return _decode(row[PACKED]), row.get(PAYLOAD) or b""
    attributes = {
        name: value_of(value)
        for name, value in row.items()
        if value is not None and not name.startswith(PREFIX)
    }
    return attributes, b""


def value_of(value: Any) -> Value:
    match value:
        case bool() | int() | float() | str():
            return value
        case datetime():
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        case date():
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        case Decimal():
            return _number(value)
        case bytes():
            return _text(value)
    return json.dumps(value, default=str, ensure_ascii=False)


def _number(value: Decimal) -> int | float:
    """Integers stay integers; others become floats, unless digits would be lost."""
    if value.as_tuple().exponent == 0:
        return int(value)
    if not is_exact(value):
        raise EventError(f"the number {value} has more digits than a float; write it as text")
    return float(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as problem:
        raise EventError(f"byte {problem.start + 1} of a binary value is not UTF-8 text") from None


# ── publishing ───────────────────────────────────────────────────────────────────────────

log = logging.getLogger("motet.spark")

EVERYTHING: Final = "true"
TELL_ROWS: Final = 256
CONNECT_S: Final = 10.0
LEAVE_S: Final = 1.0
"""After a failure: how long to wait for brokers."""
CLOSE_S: Final = 10.0


class ReplayProgress(Struct, frozen=True):
    """The progress or the result of a replay."""

    rows: int
    before: int
    """Published by earlier runs."""
    published: int
    """Published by this one."""
    behind_s: float
    """The longest delay of an event so far."""
    took_s: float

    @property
    def per_s(self) -> float:
        return self.published / self.took_s if self.took_s > 0 else 0.0


class Replay:
    def __init__(
        self,
        plan: ReplayPlan,
        brokers: Sequence[str],
        speed: Speed,
        *,
        advertise: str = EVERYTHING,
        keys: bool = False,
        tell: Callable[[ReplayProgress], None] = lambda _: None,
    ) -> None:
        if not brokers:
            raise MisuseError("a replay needs the address of a broker")
        self._plan = plan
        self._brokers = sorted(brokers)  # sorted: sessions keep their brokers
        self._factor = speed.factor_for(plan.span_s)
        self._advertise = advertise
        self._keys = keys
        self._tell = tell
        self._before = 0
        self._published = 0
        self._behind_s = 0.0
        self._began_s = 0.0

    async def run(self) -> ReplayProgress:
        with alone(Path(self._plan.folder)):
            return await self._run()

    async def _run(self) -> ReplayProgress:
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
            await _leave(clients, LEAVE_S)
            raise
        await _leave(clients, discard_session=True)
        return self._told()

    async def _client(self, publisher: int) -> Client:
        url = self._brokers[publisher % len(self._brokers)]
        name = self._plan.client_id(publisher)
        return await connect(url, client_id=name, durable=True, connect_timeout=CONNECT_S)

    async def _check_events(self) -> None:
        """Check all events before the first is published, so that no replay stops halfway."""
        space = Filter.parse(self._advertise)
        for rows in self._plan.batches():
            for row in rows:
                try:
                    event = Event(*self._event(row))
                    if not space.matches(event):
                        raise NotAdvertised(f"it lies outside the advertised space, {space}")
                except MisuseError as problem:
                    where = f"{name_within(row['_file'], self._plan.source)}, row {row['_row']}"
                    raise type(problem)(
                        f"{self._plan.source}: nothing was published, because {where} (from 0) "
                        f"is not a valid event: {problem}"
                    ) from None
            await asyncio.sleep(0)  # let other tasks use this loop

    def _event(self, row: Mapping[str, Any]) -> tuple[dict[str, Value], bytes]:
        attributes, payload = event_of(row)
        if self._keys:
            attributes["source.file"] = name_within(row["_file"], self._plan.source)
            attributes["source.row"] = row["_row"]
        return attributes, payload

    def _published_by(self, client: Client, share: int) -> int:
        if not client.session.resumed and self._plan.has(BEGUN):
            raise UnavailableError(
                f"an earlier run has published a part, but the session of {client.client_id} has "
                f"ended, so its size is not known; --run NAME starts again at the first event"
            )
        published = client.session.published
        if published > share:
            raise UnavailableError(
                f"{client.client_id} has published {published:,} events, more than the "
                f"{share:,} that the plan has for it; check whether another client uses its id"
            )
        return published

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

    def _told(self) -> ReplayProgress:
        return ReplayProgress(
            self._plan.rows,
            self._before,
            self._published,
            self._behind_s,
            time.monotonic() - self._began_s,
        )


async def _leave(
    clients: Sequence[Client], timeout: float = CLOSE_S, *, discard_session: bool = False
) -> None:
    """Close all clients, even if one fails: the result of the replay is known by now."""
    closings = (each.close(timeout=timeout, discard_session=discard_session) for each in clients)
    left = await asyncio.gather(*closings, return_exceptions=True)
    for client, problem in zip(clients, left, strict=True):
        if problem is not None:
            log.warning("%s could not close its session: %s", client.client_id, problem)
