"""`motet sub`: see events as they come."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from motet.cli import notation
from motet.cli.ending import FINE, Failure
from motet.cli.interrupt import until_interrupted
from motet.cli.options import Json, Url
from motet.cli.voice import remark, say, say_json
from motet.client.client import connect
from motet.model import Event, Filter, as_filter
from motet.runtime.loop import run

SHOWN_PAYLOAD_BYTES = 60


def sub(
    url: Url,
    wanted: Annotated[
        str, typer.Argument(metavar="FILTER", help="Like: \"symbol = 'ACME' and price > 10\"")
    ],
    client: Annotated[str, typer.Option(help="The client's id; by default a new one.")] = "",
    count: Annotated[int, typer.Option(min=0, help="Stop after so many events; 0: never.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.0, help="Stop after so many seconds; 0: never.")
    ] = 0.0,
    json: Json = False,
) -> int:
    """Print every event that matches FILTER, as it comes; Ctrl-C ends it.

    FILTER is text: comparisons, between, in, like 'abc%', is null, joined by and and or; "true"
    is everything. With --json each event is one line that `motet pub` can publish again.

    Exit status 1 if --timeout passes before --count events have come.
    """
    client_id = client or f"sub-{os.getpid()}"
    work = _print_events(url, client_id, as_filter(wanted), count, timeout, json)
    return run(until_interrupted(work))


async def _print_events(
    url: str, client_id: str, wanted: Filter, count: int, timeout_s: float, json: bool
) -> int:
    shown = Page(json)
    async with connect(url, client_id=client_id) as client:
        subscription = await client.subscribe(wanted)
        remark(f"{client_id} subscribed at {client.broker}, effective across the overlay")
        try:
            async with asyncio.timeout(timeout_s or None):
                async for event in subscription:
                    shown.show(event)
                    if shown.events == count:
                        break
        except TimeoutError:
            if shown.events < count:
                raise Failure(
                    f"{shown.events} of {count} events came within {timeout_s:g} s",
                    "does anyone publish and advertise what the filter wants? see `motet status`",
                ) from None
    return FINE


class Page:
    """Events one below the other, the columns as wide as the widest seen so far."""

    def __init__(self, json: bool) -> None:
        self.events = 0
        self._json = json
        self._width = 0

    def show(self, event: Event) -> None:
        self.events += 1
        if self._json:
            say_json(notation.to_json(event))
            return
        origin = f"{event.publisher}#{event.sequence}"
        self._width = max(self._width, len(origin))
        payload = f"  {_shown(event.payload)}" if event.payload else ""
        say(f"{origin:<{self._width}}  {notation.words_of(event)}{payload}")


def _shown(payload: bytes) -> str:
    text = repr(payload[:SHOWN_PAYLOAD_BYTES])[1:]
    more = len(payload) - SHOWN_PAYLOAD_BYTES
    return f"payload {text}" + (f" and {more} bytes more" if more > 0 else "")
