"""`motet pub`: publish events."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from motet.cli import notation
from motet.cli.console import FINE, Misuse, say, say_json
from motet.cli.options import (
    ClientId,
    Json,
    Url,
    argument,
    entry_broker,
    option,
    split_address,
    switch,
)
from motet.client.client import Client, connect
from motet.model import EVERYTHING, Event, Filter, Value, as_filter, attr
from motet.runtime.loop import run

READ_BYTES = 64 * 1024
CHUNKS_AHEAD = 4


def pub(
    url: Url = None,
    words: Annotated[list[str] | None, argument("NAME=VALUE", "Attributes of the event.")] = None,
    client: ClientId = "",
    advertise: Annotated[
        list[str] | None,
        option(
            "FILTER",
            "What to advertise; may be repeated.",
            show_default="the events that are published",
        ),
    ] = None,
    payload: Annotated[str, option("TEXT", "The payload of the event.")] = "",
    count: Annotated[int, option("N", "Number of times to publish the event.", min=1)] = 1,
    rate: Annotated[
        float, option("N", "Maximum events per second; 0 means no limit.", min=0.0)
    ] = 0.0,
    best_effort: Annotated[
        bool, switch("--best-effort", "Do not log the events; failures may lose some.")
    ] = False,
    json: Json = False,
) -> int:
    """Publish an event, or JSON lines from standard input.

    Without NAME=VALUE words, events are read from standard input. A line is
    {"attributes": {...}, "payload": "..."}, or just the attributes. The output of
    `motet sub --json` can be published again.

    Types of values are inferred: 3 and 2.5 are numbers, true and false are booleans,
    2026-01-31T09:30:00Z is a timestamp, anything else is text; name:=3 is the text "3".

    Without --advertise, the command advertises exactly the event given as words, or, for JSON
    lines, all events with the same attribute names.
    """
    spaces = [as_filter(text) for text in advertise or []]
    url, attributes = split_address(url, words or [])
    if attributes:
        event = Event(notation.attributes_of(attributes), payload.encode())
        source = _repeated(event, count)
        spaces = spaces or [_space_of(event)]
    else:
        if payload or count != 1:
            raise Misuse(
                "--payload and --count apply only to an event given as words",
                "omit them, or write the event: symbol=ACME price=12.5",
            )
        if sys.stdin.isatty():
            raise Misuse("there is no event to publish", "motet pub symbol=ACME price=12.5")
        source = _from_lines()
    client_id = client or f"pub-{os.getpid()}"
    result = run(_publish(entry_broker(url), client_id, source, spaces, rate, best_effort))
    if json:
        say_json(result)
    else:
        say(f"published {result['published']} as {client_id} at {result['broker']}")
    return FINE


async def _publish(
    url: str,
    client_id: str,
    source: AsyncIterator[Event],
    spaces: list[Filter],
    rate: float,
    best_effort: bool,
) -> dict[str, Any]:
    async with connect(url, client_id=client_id, best_effort=best_effort) as client:
        for space in spaces:
            await client.advertise(space)
        announced = None if spaces else Announced(client)
        published = 0
        begin = time.monotonic()
        async for event in source:
            if announced is not None:
                await announced.cover(event)
            if rate:
                await _sleep_until(begin + published / rate)
            await client.send(event)
            published += 1
        await client.flush()
        return {"client": client_id, "broker": client.broker, "published": published}


class Announced:
    """Advertises the shape of an event, its attributes' names, when it first occurs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._shapes: set[frozenset[str]] = set()

    async def cover(self, event: Event) -> None:
        shape = frozenset(event.keys())
        if shape not in self._shapes:
            space = EVERYTHING
            for name in sorted(shape):
                space &= attr(name).is_not_null()
            await self._client.advertise(space)
            self._shapes.add(shape)


def _space_of(event: Event) -> Filter:
    """All events that have these attributes with these values."""
    space = EVERYTHING
    for name, value in event.items():
        space &= _is(name, value)
    return space


def _is(name: str, value: Value) -> Filter:
    return attr(name) == value if value == value else attr(name).is_not_null()


async def _sleep_until(moment: float) -> None:
    wait_s = moment - time.monotonic()
    if wait_s > 0:
        await asyncio.sleep(wait_s)


# ── where events come from ───────────────────────────────────────────────────────────────


async def _repeated(event: Event, count: int) -> AsyncIterator[Event]:
    for _ in range(count):
        yield event


async def _from_lines() -> AsyncIterator[Event]:
    number = 0
    async for line in stdin_lines():
        number += 1
        if not line.strip():
            continue
        try:
            yield Event(*notation.from_json(line))
        except Exception as problem:
            hint = getattr(problem, "hint", "") or "see `motet pub --help`"
            raise Misuse(f"line {number}: {problem}", hint) from None


async def stdin_lines() -> AsyncIterator[str]:
    """Lines as they arrive. A daemon thread reads at most a few chunks ahead, so that this process
    can end without waiting for more input."""
    chunks: asyncio.Queue[bytes] = asyncio.Queue(CHUNKS_AHEAD)
    loop = asyncio.get_running_loop()

    def read() -> None:
        chunk = b"-"
        while chunk:
            chunk = os.read(sys.stdin.fileno(), READ_BYTES)
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()

    threading.Thread(target=read, daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")
