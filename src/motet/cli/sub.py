"""`motet sub`: print events as they arrive."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated

from motet.cli import notation
from motet.cli.console import FINE, CommandFailed, Misuse, remark, say, say_json
from motet.cli.interrupt import until_interrupted
from motet.cli.options import (
    ClientId,
    Json,
    Url,
    argument,
    entry_broker,
    option,
    split_word,
    switch,
)
from motet.client.checks import KEEP_S, Since, check_past
from motet.client.client import AwaitableContext, Client, as_order, connect
from motet.client.subscription import Subscription
from motet.model import Event, Filter, as_filter
from motet.runtime.loop import run

SHOWN_PAYLOAD_BYTES = 60


def sub(
    url: Url = None,
    wanted: Annotated[
        str | None, argument("FILTER", "Like: \"symbol = 'ACME' and price > 10\"")
    ] = None,
    client: ClientId = "",
    durable: Annotated[
        bool, switch("--durable", "Continue the durable session of --client.")
    ] = False,
    keep: Annotated[
        float | None,
        option(
            "SECONDS",
            "With --durable: how long the broker keeps the session.",
            min=0.0,
            show_default=f"{KEEP_S:.0f}, a week",
        ),
    ] = None,
    forget: Annotated[
        bool, switch("--forget", "With --durable: delete the session at the end.")
    ] = False,
    since: Annotated[
        str,
        option(
            "TIME",
            "Also print earlier events: from the beginning, or from a time like "
            "2026-01-31T12:00:00+00:00.",
        ),
    ] = "",
    count: Annotated[int, option("N", "Stop after N events; 0 means never.", min=0)] = 0,
    timeout: Annotated[
        float, option("SECONDS", "Stop after this time; 0 means never.", min=0.0)
    ] = 0.0,
    order: Annotated[
        str,
        option(
            "publisher|total",
            "publisher: events of each publisher in order. total: also, all clients with this "
            "option see all events in the same order.",
        ),
    ] = "publisher",
    participate: Annotated[
        bool,
        switch(
            "--participate",
            "Take part in plans, and also print the events of subscriptions that they start.",
        ),
    ] = False,
    json: Json = False,
) -> int:
    """Print events that match FILTER until Ctrl-C.

    A filter has comparisons, between, in, like 'abc%' and is null, joined by and and or; "true"
    matches every event. With --json each event is one line that `motet pub` can publish again.

    With --durable the broker keeps matching events while no process of --client runs. With --since
    the command also prints earlier events, as far as brokers still keep them.

    Exit status 1 if fewer than --count events arrive within --timeout.
    """
    url, text = split_word(url, wanted, "FILTER")
    if durable and not client:
        raise Misuse("--durable needs the id of the client", "add --client ID")
    for name, given in (("--forget", forget), ("--keep", keep is not None)):
        if given and not durable:
            raise Misuse(
                f"{name} applies only to a durable session", f"add --durable, or omit {name}"
            )
    client_id = client or f"sub-{os.getpid()}"
    filter, time, known = as_filter(text), _time(since), as_order(order)

    address = entry_broker(url)

    async def work() -> int:
        opening = connect(address, client_id=client_id, durable=durable, keep=keep, order=known)
        return await _print_events(opening, filter, time, count, timeout, json, forget, participate)

    return run(until_interrupted(work()))


def _time(since: str) -> Since | None:
    if since in ("", "beginning"):
        return since or None
    try:
        found = datetime.fromisoformat(since)
    except ValueError:
        raise Misuse(
            f"--since {since!r} is neither 'beginning' nor a time",
            "write a time like 2026-01-31T12:00:00+00:00",
        ) from None
    if found.tzinfo is None:
        try:
            found = found.astimezone()
        except (OverflowError, ValueError):  # a year that the system's time zones do not know
            found = found.replace(tzinfo=UTC)
    check_past(found)  # before anything durable is created
    return found


async def _print_events(
    opening: AwaitableContext[Client],
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
            events = SubscriptionEvents(subscription)
            await events.take_up(client)
            await client.participate(on_started=events.add)
        remark(f"{client.client_id} subscribed at {client.broker}, effective across the overlay")
        for other in client.registrations:
            if not other.claimed:
                remark(
                    f"{other.name} is another subscription of this client; the broker keeps its "
                    "events until a process subscribes to it or --forget ends the session"
                )
        try:
            async with asyncio.timeout(timeout_s or None):
                async for event in events:
                    shown.show(event)
                    if shown.events == count:
                        break
        except asyncio.CancelledError:
            client.acknowledge()  # the printed events are processed
            raise
        except TimeoutError:
            if shown.events < count:
                raise CommandFailed(
                    f"only {shown.events} of {count} events arrived within {timeout_s:g} s",
                    "check that a client publishes and advertises matching events: `motet status`",
                ) from None
        if subscription.lost:
            remark(f"brokers reported lost events {subscription.lost} times")
        if forget:
            await client.close(discard_session=True)
    return FINE


class SubscriptionEvents(AsyncIterator[Event]):
    """The events of several subscriptions, as they arrive. It does not end with the subscriptions:
    another plan may start new ones."""

    def __init__(self, first: Subscription) -> None:
        self._wanted: dict[Subscription, asyncio.Task[Event]] = {}
        self._more = asyncio.Event()
        self.add(first)

    def add(self, subscription: Subscription) -> None:
        self._wanted[subscription] = asyncio.ensure_future(anext(subscription))
        self._more.set()

    async def take_up(self, client: Client) -> None:
        """Subscribe again to what plans started for earlier processes of this client."""
        for left in client.registrations:
            if isinstance(left, Subscription) and not left.claimed:
                self.add(await client.subscribe(left.filter, name=left.name))
                remark(f"also printing {left.name}, an earlier subscription of this client")

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
    """One line per event; columns are as wide as the widest value so far."""

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
    return f"payload {text}" + (f" and {more} more bytes" if more > 0 else "")
