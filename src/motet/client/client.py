"""The client as applications see it.

async with motet.connect("motet://127.0.0.1:7701", client_id="alice") as client:
    await client.advertise("process = 'p1'")
    async with client.subscribe("step > 1") as subscription:
        await client.publish({"process": "p1", "step": 2}, payload=b"...")
        async for event in subscription:
            print(event["step"], event.payload)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Self

from motet.client.conversation import Conversation
from motet.client.failures import error_of
from motet.client.happenings import Failure
from motet.client.ledger import Receipt
from motet.client.machine import DEFAULT_WINDOW, ClientMachine
from motet.client.opening import Opening
from motet.client.outgoing import Outgoing, Publishable
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import DEFAULT_BUFFER, Callback, Subscription, finish
from motet.errors import Disconnected, MisuseError, NoSuchOperation
from motet.model import Filter, as_filter
from motet.model.limits import MAX_CLIENT_ID_CHARS

log = logging.getLogger("motet.client")

Wait = Literal["overlay", "local"]

LEAVE_S = 2.0
MAX_CREDENTIALS_BYTES = 64 * 1024


class Client:
    """One session with one broker. Made by `connect`, on a running event loop.

    It belongs to that loop: call it from there only (`connect_sync` is for threads). If the
    connection breaks it connects again and resumes its session; if the broker does not know the
    session any more it opens a new one and renews everything that was in force.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._outgoing = Outgoing()
        self._body = self._outgoing.body
        self._ledger = conversation.ledger

    # ── who and where ────────────────────────────────────────────────────────────────────

    @property
    def client_id(self) -> str:
        return self._conversation.machine.client

    @property
    def broker(self) -> str:
        """The name of the broker that serves us."""
        return self._conversation.machine.broker or ""

    @property
    def address(self) -> str:
        return self._conversation.address

    @property
    def session_epoch(self) -> str:
        """The broker's name for this session; a new one means that the old one was lost."""
        return self._conversation.machine.epoch or ""

    @property
    def lost_sessions(self) -> int:
        """How often a session was lost and opened anew: events may have been missed then."""
        return self._conversation.lost_sessions

    @property
    def connected(self) -> bool:
        return self._conversation.machine.state == "open"

    @property
    def closed(self) -> bool:
        return self._conversation.error is not None

    @property
    def dropped_by_broker(self) -> int:
        """Events that the broker threw away because we did not read the connection."""
        return self._conversation.dropped_by_broker

    @property
    def unsettled(self) -> int:
        """Publications that still await their fate."""
        return self._conversation.made - self._ledger.settled

    async def status(self, *, timeout: float = 10.0) -> dict[str, Any]:
        """What the broker says about itself: links, tables, queues, rates."""
        return await self._conversation.inquire(_checked_time(timeout))

    # ── advertisements and subscriptions ─────────────────────────────────────────────────

    def advertise(
        self, filter: str | Filter, *, wait: Wait = "overlay", timeout: float = 10.0
    ) -> Opening[Advertisement]:
        """Announce what will be published; events outside of it are refused.

        Await it, or use it with `async with`. It returns once the advertisement is known in the
        whole overlay and every matching subscription has reached our broker; with
        `wait="local"`, as soon as our broker has it. `NotEffective` names the brokers that
        were not reached in time; the advertisement is then taken back.
        """
        return Opening(self._advertise(filter, wait, timeout))

    async def _advertise(self, filter: str | Filter, wait: Wait, timeout: float) -> Advertisement:
        entry = Advertisement(as_filter(filter), self._withdraw)
        await self._put_in_force(entry, wait, timeout)
        return entry

    def subscribe(
        self,
        filter: str | Filter,
        *,
        callback: Callback | None = None,
        wait: Wait = "overlay",
        timeout: float = 10.0,
        buffer: int = DEFAULT_BUFFER,
    ) -> Opening[Subscription]:
        """Receive what matches, by iterating or through `callback` (a plain or async function).

        Await it, or use it with `async with`. It returns once every broker on the way to every
        matching advertiser has the subscription: what they publish from then on arrives.
        `buffer` bounds the events that wait here for the application.
        """
        return Opening(self._subscribe(filter, callback, wait, timeout, buffer))

    async def _subscribe(
        self,
        filter: str | Filter,
        callback: Callback | None,
        wait: Wait,
        timeout: float,
        buffer: int,
    ) -> Subscription:
        if callback is not None and not callable(callback):
            raise MisuseError(f"a callback must be callable, not a {type(callback).__name__}")
        if type(buffer) is not int or buffer < 1:
            raise MisuseError(f"a buffer holds at least one event, not {buffer!r}")
        wanted = as_filter(filter)
        entry = Subscription(wanted, self._withdraw, buffer=buffer, callback=callback)
        try:
            await self._put_in_force(entry, wait, timeout)
        except BaseException:
            entry.end(None)
            raise
        return entry

    async def _put_in_force(self, entry: Standing, wait: Wait, timeout: float) -> None:
        everywhere, timeout_s = _checked(wait, timeout)
        await self._conversation.put_in_force(entry, wait=everywhere, timeout_s=timeout_s)

    async def unadvertise(
        self, advertisement: Advertisement, *, wait: Wait = "overlay", timeout: float = 10.0
    ) -> None:
        if not isinstance(advertisement, Advertisement):
            raise MisuseError(f"unadvertise takes an Advertisement, not {advertisement!r}")
        self._check_ours(advertisement)
        await advertisement.unadvertise(wait=wait, timeout=timeout)

    async def unsubscribe(
        self, subscription: Subscription, *, wait: Wait = "overlay", timeout: float = 10.0
    ) -> None:
        if not isinstance(subscription, Subscription):
            raise MisuseError(f"unsubscribe takes a Subscription, not {subscription!r}")
        self._check_ours(subscription)
        await subscription.unsubscribe(wait=wait, timeout=timeout)

    def _check_ours(self, entry: Standing) -> None:
        self._conversation.check_open()
        if self._conversation.entries.get(entry.handle) is not entry:
            raise NoSuchOperation(f"{entry!r} is not in force at this client")

    async def _withdraw(self, entry: Standing, /, *, wait: str, timeout: float) -> None:
        everywhere, timeout_s = _checked(wait, timeout)
        if entry.in_force:  # else it was taken back before, or went with the session
            await self._conversation.take_back(entry, wait=everywhere, timeout_s=timeout_s)
            await finish((entry,))

    # ── publications ─────────────────────────────────────────────────────────────────────

    async def publish(self, event: Publishable, payload: bytes = b"") -> Receipt:
        """Accept an event (an `Event`, or a dict of attributes) into the window.

        It waits only while the window is full. The event is on its way when this returns;
        awaiting the receipt, or `flush()`, means that the broker has accepted it.
        """
        body = self._body(event, payload)
        talk = self._conversation
        if not talk.has_room:
            await talk.room()
        return Receipt(self._ledger, talk.stage(body))

    def publish_nowait(self, event: Publishable, payload: bytes = b"") -> Receipt | None:
        """Like `publish`, but returns None instead of waiting when the window is full."""
        body = self._body(event, payload)
        talk = self._conversation
        talk.check_open()
        return Receipt(self._ledger, talk.stage(body)) if talk.has_room else None

    async def publish_many(self, events: Iterable[Publishable]) -> Receipt | None:
        """Publish all, in order; the receipt of the last one settles after all others."""
        last = None
        for event in events:
            last = await self.publish(event)
        return last

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the fate of everything published so far is known.

        Raises the first refusal since the last flush, if there was one, and says how many.
        """
        talk = self._conversation
        made = talk.made
        if made > self._ledger.settled:
            talk.check_open()
            try:
                async with asyncio.timeout(timeout):
                    await self._ledger.reach(made)
            except TimeoutError:
                raise Disconnected(
                    f"{made - self._ledger.settled} publications were not settled within "
                    f"{timeout:g} s"
                ) from None
        count, failed, first = self._ledger.take_failures(made)
        if first is not None:
            text = f"{failed} of {count} publications failed; the first one: {first.text}"
            raise error_of(Failure(first.error, text))

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def close(self, *, patience: float = LEAVE_S) -> None:
        """Settle what was published, say goodbye, end every subscription. Twice is harmless.

        `patience` bounds, in seconds, how long it waits for the broker.
        """
        talk = self._conversation
        if talk.error is None and self.connected and self.unsettled:
            try:
                async with asyncio.timeout(patience):
                    await self._ledger.reach(talk.made)
            except TimeoutError:
                log.warning("%d publications are not settled at the end", self.unsettled)
        entries = list(talk.entries.values())
        await talk.leave(patience)
        await finish(entries)
        _, failed, first = self._ledger.take_failures(talk.made)
        if first is not None:
            log.info("%d publications failed since the last flush: %s", failed, first.text)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(patience=LEAVE_S if error is None else LEAVE_S / 4)

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._conversation.machine.state
        return f"<Client {self.client_id} at {self.broker or self.address}, {state}>"


def connect(
    address: str,
    *,
    client_id: str | None = None,
    connect_timeout: float = 5.0,
    window: int = DEFAULT_WINDOW,
    credentials: bytes = b"",
) -> Opening[Client]:
    """Open a session with the broker at `address`: await it, or use it with `async with`.

    A client id is the name of one client in the whole overlay; a second one with the same id, at
    whatever broker, takes over, and the first one gets `Fenced`. Without an id, a random one is
    taken. `window` bounds the publications whose fate is open.
    """
    return Opening(_connect(address, client_id, connect_timeout, window, credentials))


async def _connect(
    address: str,
    client_id: str | None,
    connect_timeout: float,
    window: int,
    credentials: bytes,
) -> Client:
    if client_id is None:
        client_id = f"client-{secrets.token_hex(6)}"
    if not isinstance(client_id, str):
        raise MisuseError(f"a client id is text, not a {type(client_id).__name__}")
    if not 0 < len(client_id) <= MAX_CLIENT_ID_CHARS or not client_id.isprintable():
        raise MisuseError(f"a client id has 1 to {MAX_CLIENT_ID_CHARS} printable characters")
    if not isinstance(address, str):
        raise MisuseError(f"an address is text like motet://host:port, not {address!r}")
    if type(window) is not int or window < 1:
        raise MisuseError(f"a window holds at least one publication, not {window!r}")
    if not _is_time(connect_timeout) or not connect_timeout > 0:
        raise MisuseError(
            f"connect_timeout is a number of seconds above 0, not {connect_timeout!r}"
        )
    if not isinstance(credentials, bytes) or len(credentials) > MAX_CREDENTIALS_BYTES:
        raise MisuseError(f"credentials are at most {MAX_CREDENTIALS_BYTES} bytes")
    instance = secrets.token_hex(8)
    machine = ClientMachine(client_id, window=window, credentials=credentials, instance=instance)
    conversation = Conversation(address, machine)
    await conversation.begin(connect_timeout)
    return Client(conversation)


def _checked(wait: str, timeout: float) -> tuple[bool, float]:
    if wait not in ("overlay", "local"):
        raise MisuseError(f"wait is 'overlay' or 'local', not {wait!r}")
    return wait == "overlay", _checked_time(timeout)


def _checked_time(timeout: float) -> float:
    if not _is_time(timeout) or not 0 <= timeout < float("inf"):
        raise MisuseError(f"timeout is a number of seconds, not {timeout!r}")
    try:
        return float(timeout)
    except OverflowError:
        raise MisuseError("timeout is a number of seconds that fits into a float") from None


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
