"""`motet pub`: publish events."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from motet.cli import notation
from motet.cli.ending import FINE, Misuse
from motet.cli.options import Json, Url
from motet.cli.voice import say, say_json
from motet.client.client import Client
from motet.client.connecting import connect
from motet.model import EVERYTHING, Event, Filter, Value, as_filter, attr
from motet.runtime.loop import run

READ_BYTES = 64 * 1024
CHUNKS_AHEAD = 4


def pub(
    url: Url,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="The event's attributes."),
    ] = None,
    client: Annotated[str, typer.Option(help="The client's id; by default a new one.")] = "",
    advertise: Annotated[
        list[str] | None,
        typer.Option(metavar="FILTER", help="Advertise this instead of what is published."),
    ] = None,
    payload: Annotated[str, typer.Option(help="The event's payload, as text.")] = "",
    count: Annotated[int, typer.Option(min=1, help="Publish the event so many times.")] = 1,
    rate: Annotated[
        float, typer.Option(min=0.0, help="Events per second at most; 0 is as fast as it goes.")
    ] = 0.0,
    best_effort: Annotated[
        bool,
        typer.Option("--best-effort", help="Do not log the events: faults may lose some."),
    ] = False,
    json: Json = False,
) -> int:
    """Publish one event given as words, or those read as JSON lines from standard input.

    Types are inferred: 3 and 2.5 are numbers, true and false are bools, 2026-01-31T09:30:00Z is
    a timestamp, everything else is text; name:=3 is the text "3".

    A line of standard input is {"attributes": {...}, "payload": "..."} or just the attributes:
    what `motet sub --json` prints can be published again.

    Unless --advertise says otherwise, it advertises exactly the event given as words, and for
    JSON lines all events that have the same attributes.
    """
    spaces = [as_filter(text) for text in advertise or []]
    if words:
        event = Event(notation.attributes_of(words), payload.encode())
        source = _repeated(event, count)
        spaces = spaces or [_space_of(event)]
    else:
        if payload or count != 1:
            raise Misuse("--payload and --count go with an event given as words")
        if sys.stdin.isatty():
            raise Misuse("what shall be published?", "motet pub URL symbol=ACME price=12.5")
        source = _from_lines()
    client_id = client or f"pub-{os.getpid()}"
    result = run(_publish(url, client_id, source, spaces, rate, best_effort))
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
            await client.publish(event)
            published += 1
        await client.flush()
        return {"client": client_id, "broker": client.broker, "published": published}


class Announced:
    """Advertises the shape of an event, its attributes' names, when it is first seen."""

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
    async for line in _stdin_lines():
        number += 1
        if not line.strip():
            continue
        try:
            yield Event(*notation.from_json(line))
        except Exception as problem:
            hint = getattr(problem, "hint", "") or "see `motet pub --help`"
            raise Misuse(f"line {number}: {problem}", hint) from None


async def _stdin_lines() -> AsyncIterator[str]:
    """Lines as they come. A daemon thread reads, so that an end of ours never waits for more
    input; it runs only a few chunks ahead."""
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
