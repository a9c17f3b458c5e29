"""Publishers at a fixed rate, and subscribers that note when each event arrives.

All of them run on one loop and share one clock, so a latency is the difference of two readings.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from motet.client.client import Client
from motet.client.connecting import connect
from motet.errors import MotetError
from motet.model import Event, encode_event

SPACE = "publisher >= 0"
POLL_S = 0.05
CONNECT_S = 20.0
FIRST_NUMBER = 1_000_000
"""So that all events have the same size."""


class Arrival(NamedTuple):
    """One event at one subscriber; times are seconds of the monotonic clock."""

    publisher: int
    number: int
    sent: float
    latency_s: float
    pubend: str


class Account(NamedTuple):
    """What became of the events, over all subscribers."""

    published: int
    delivered: int
    lost: int
    doubled: int
    disordered: int

    @property
    def kept(self) -> bool:
        return not (self.lost or self.doubled or self.disordered)


def padding(event: Mapping[str, int | float], size_bytes: int) -> bytes:
    """A payload that gives an encoded event its size."""
    payload = b""
    while (lacking := size_bytes - len(encode_event(event, payload))) > 0:
        payload += bytes(max(1, lacking - 2))  # its length may need another byte
        if len(encode_event(event, payload)) > size_bytes:
            return payload[:-1]
    return payload


class Traffic:
    def __init__(self, publishers: int, per_s: float, size_bytes: int) -> None:
        self.arrivals: dict[str, list[Arrival]] = {}
        """By subscriber."""
        self._publishers = publishers
        self._period_s = 1.0 / per_s
        self._size_bytes = size_bytes
        self._made: Counter[int] = Counter()
        self._clients: list[Client] = []
        self._pacing: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def connected(
        self, publish_at: str, subscribe_at: Mapping[str, str]
    ) -> AsyncIterator[None]:
        """Everybody is there; nothing is published yet."""
        async with AsyncExitStack() as stack:
            for number in range(self._publishers):
                opening = connect(
                    publish_at, client_id=f"publisher-{number}", connect_timeout=CONNECT_S
                )
                client = await stack.enter_async_context(opening)
                await client.advertise(f"publisher = {number}", timeout=CONNECT_S)
                self._clients.append(client)
            for name, address in subscribe_at.items():
                opening = connect(
                    address, client_id=f"subscriber-{name}", connect_timeout=CONNECT_S
                )
                client = await stack.enter_async_context(opening)
                notes = self.arrivals[name] = []
                note = _note_in(notes)
                await client.subscribe(SPACE, callback=note, timeout=CONNECT_S)
            try:
                yield
            finally:
                await self.stop()

    # ── publishing ───────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        now = time.monotonic()
        share_s = self._period_s / self._publishers
        for number, client in enumerate(self._clients):
            work = self._publish(number, client, now + number * share_s)
            self._pacing.append(asyncio.ensure_future(work))

    async def _publish(self, number: int, client: Client, at: float) -> None:
        event: dict[str, int | float] = {"publisher": number, "number": FIRST_NUMBER, "sent": 0.5}
        payload = padding(event, self._size_bytes)
        while True:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            at += self._period_s
            if not client.connected:
                continue  # as the paper's: a publisher without its broker is down, too
            made = FIRST_NUMBER + self._made[number]
            event = {"publisher": number, "number": made, "sent": time.monotonic()}
            await client.publish(event, payload)
            self._made[number] += 1

    async def stop(self) -> None:
        """Publish no more; raises if publishing has failed."""
        pacing, self._pacing = self._pacing, []
        for task in pacing:
            task.cancel()
        for result in await asyncio.gather(*pacing, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def settle(self, bound_s: float) -> None:
        """Wait until everything that was published is everywhere, but not for ever: what is
        missing then is lost."""
        owed = sum(self._made.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_s):
                for client in self._clients:
                    with contextlib.suppress(MotetError):  # what was refused will be missing
                        await client.flush()
                while any(len(notes) < owed for notes in self.arrivals.values()):
                    await asyncio.sleep(POLL_S)

    # ── accounting ───────────────────────────────────────────────────────────────────────

    def account(self) -> Account:
        """Every event at every subscriber."""
        published = sum(self._made.values())
        delivered = lost = doubled = disordered = 0
        for notes in self.arrivals.values():
            seen = {(note.publisher, note.number) for note in notes}
            delivered += len(notes)
            lost += published - len(seen)
            doubled += len(notes) - len(seen)
            disordered += _disordered(notes)
        return Account(published, delivered, lost, doubled, disordered)


def _note_in(notes: list[Arrival]) -> Callable[[Event], None]:
    def note(event: Event) -> None:
        now = time.monotonic()
        publisher, number, sent = event["publisher"], event["number"], event["sent"]
        assert isinstance(publisher, int)
        assert isinstance(number, int)
        assert isinstance(sent, float)
        notes.append(Arrival(publisher, number, sent, now - sent, event.pubend or ""))

    return note


def _disordered(notes: Sequence[Arrival]) -> int:
    last: dict[int, int] = {}
    count = 0
    for note in notes:
        if note.number < last.get(note.publisher, 0):
            count += 1
        last[note.publisher] = note.number
    return count
