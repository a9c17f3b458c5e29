"""`motet sub`: see events as they come."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from typing import Annotated

import typer

from motet.cli import notation
from motet.cli.ending import FINE, Failure
from motet.cli.interrupt import until_interrupted
from motet.cli.options import Json, Url
from motet.cli.voice import remark, say, say_json
from motet.client.checks import Since, check_past
from motet.client.client import Client
from motet.client.connecting import KEEP_S, as_order, connect
from motet.client.opening import Opening
from motet.client.subscription import Subscription
from motet.errors import MisuseError
from motet.model import Event, Filter, as_filter
from motet.runtime.loop import run

SHOWN_PAYLOAD_BYTES = 60


def sub(
    url: Url,
    wanted: Annotated[
        str, typer.Argument(metavar="FILTER", help="Like: \"symbol = 'ACME' and price > 10\"")
    ],
    client: Annotated[str, typer.Option(help="The client's id; by default a new one.")] = "",
    durable: Annotated[
        bool,
        typer.Option(help="Go on where the last durable process of --client has stopped."),
    ] = False,
    keep: Annotated[
        float, typer.Option(min=0.0, help="Seconds that a durable session is kept for.")
    ] = KEEP_S,
    forget: Annotated[
        bool, typer.Option(help="With --durable: keep nothing when this ends.")
    ] = False,
    since: Annotated[
        str, typer.Option(help='"beginning", or a time like 2026-01-31T12:00:00+00:00.')
    ] = "",
    count: Annotated[int, typer.Option(min=0, help="Stop after so many events; 0: never.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.0, help="Stop after so many seconds; 0: never.")
    ] = 0.0,
    order: Annotated[
        str,
        typer.Option(
            help="publisher: each publisher's events in its order; total: besides, all clients in "
            "total order see all events in one order."
        ),
    ] = "publisher",
    participate: Annotated[
        bool,
        typer.Option("--participate", help="Take part in plans; print what they let begin, too."),
    ] = False,
    json: Json = False,
) -> int:
    """Print every event that matches FILTER, as it comes; Ctrl-C ends it.

    FILTER is text: comparisons, between, in, like 'abc%', is null, joined by and and or; "true"
    is everything. With --json each event is one line that `motet pub` can publish again.

    With --durable nothing is missed while nobody runs: the broker keeps what comes for --client.
    With --since it also prints what was published before, as far as brokers still have it.

    Exit status 1 if --timeout passes before --count events have come.
    """
    if durable and not client:
        raise MisuseError("a durable client needs its id: --client NAME")
    if forget and not durable:
        raise MisuseError("there is nothing to forget without --durable")
    client_id = client or f"sub-{os.getpid()}"
    filter, time, known = as_filter(wanted), _time(since), as_order(order)

    async def work() -> int:
        opening = connect(url, client_id=client_id, durable=durable, keep_s=keep, order=known)
        return await _print_events(opening, filter, time, count, timeout, json, forget, participate)

    return run(until_interrupted(work()))


def _time(since: str) -> Since | None:
    if since in ("", "beginning"):
        return since or None
    try:
        found = datetime.fromisoformat(since)
    except ValueError:
        raise MisuseError(
            f"--since is 'beginning' or a time like 2026-01-31T12:00:00+00:00, not {since!r}"
        ) from None
    if found.tzinfo is None:
        found = found.astimezone()
    check_past(found)  # before anything durable is made
    return found


async def _print_events(
    opening: Opening[Client],
    wanted: Filter,
    since: Since | None,
    count: int,
    timeout_s: float,
    json: bool,
    forget: bool,
    participate: bool,
) -> int:
    shown = Page(json)
    async with opening as client:
        subscription = await client.subscribe(wanted, since=since)
        events: AsyncIterator[Event] = subscription
        if participate:
            events = Several(subscription)
            await events.take_up(client)
            await client.participate(began=events.add)
        remark(f"{client.client_id} subscribed at {client.broker}, effective across the overlay")
        for other in client.standing:
            if not other.taken_up:
                remark(f"{other.name} stands, too, and keeps its events; --forget would end it")
        try:
            async with asyncio.timeout(timeout_s or None):
                async for event in events:
                    shown.show(event)
                    if shown.events == count:
                        break
        except asyncio.CancelledError:
            client.acknowledge()  # what is shown is done with
            raise
        except TimeoutError:
            if shown.events < count:
                raise Failure(
                    f"{shown.events} of {count} events came within {timeout_s:g} s",
                    "does anyone publish and advertise what the filter wants? see `motet status`",
                ) from None
        if subscription.lost:
            remark(f"{subscription.lost} times brokers have reported that events are lost")
        if forget:
            await client.close(forget=True)
    return FINE


class Several(AsyncIterator[Event]):
    """The events of several subscriptions, as they come. It goes on when some, or all, are over:
    another plan may let others begin."""

    def __init__(self, first: Subscription) -> None:
        self._wanted: dict[Subscription, asyncio.Task[Event]] = {}
        self._more = asyncio.Event()
        self.add(first)

    def add(self, subscription: Subscription) -> None:
        self._wanted[subscription] = asyncio.ensure_future(anext(subscription))
        self._more.set()

    async def take_up(self, client: Client) -> None:
        """What plans have let begin while an earlier process of the client was there, or nobody."""
        for left in client.standing:
            if isinstance(left, Subscription) and not left.taken_up:
                self.add(await client.subscribe(left.filter, name=left.name))
                remark(f"{left.name} stands, too, and is printed; --forget would end it")

    async def __anext__(self) -> Event:
        while True:
            self._more.clear()
            more = asyncio.ensure_future(self._more.wait())
            try:
                await asyncio.wait(
                    {more, *self._wanted.values()}, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                more.cancel()
            for subscription, task in list(self._wanted.items()):
                if task.done():
                    del self._wanted[subscription]
                    with suppress(StopAsyncIteration):
                        event = task.result()
                        self.add(subscription)
                        return event


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
