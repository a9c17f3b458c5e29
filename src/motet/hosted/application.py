"""What the code of a hosted client derives from, and what it may call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from motet.client.client import Client
from motet.client.publications import Publishable
from motet.client.subscription import Advertisement
from motet.client.transaction import Handler
from motet.errors import EventsLost, MotetError, NameTaken, NotAdvertised
from motet.model import Event, Filter, as_filter, decode_attributes

if TYPE_CHECKING:
    from motet.hosted.execution import Execution


class Hosted:
    """The code of a hosted client. The container makes an object of its class, without arguments,
    and calls `start`; then `on_event` for each event, one after the other.

    After each event, or several while the disk is busy, the container acknowledges what was
    handled, together with `state()` and with what was published meanwhile: either all of it is
    durable, or nothing. Whatever crashes, the next copy continues from there, at the same broker or
    where the client has moved to, so each event takes effect once.

    An error that is raised ends this copy, and another one starts after a pause.
    """

    async def start(self, context: Context, state: bytes | None) -> None:
        """Begin, or continue with the state that was acknowledged last. No event is handled before
        it returns."""

    async def on_event(self, event: Event) -> None:
        """Handle an event of any subscription; `context.matched` has the names of those that it is
        for. It is called again, for another copy, if this one ends before the event is
        acknowledged."""

    def state(self) -> bytes:
        """The state to be kept, at most 1 MiB. Called between two events."""
        return b""

    async def on_loss(self, loss: EventsLost) -> None:
        """Events of a publisher's broker are permanently lost."""

    async def on_move_refused(self, error: MotetError) -> None:
        """The client stays where it is, although it has asked for a move."""

    async def stop(self) -> None:
        """This copy ends: the client moves, its broker stops, or the copy has failed. What happens
        here is not acknowledged any more."""


class Context:
    """What a hosted client may do. All of it survives the copy: subscriptions and advertisements
    belong to the client, and go where it goes."""

    def __init__(
        self, execution: Execution, client: Client, broker: str, options: Mapping[str, Any]
    ) -> None:
        self.name = client.client_id
        self.broker = broker
        """The broker that runs this copy."""
        self.options = options
        """From the topology file."""
        self.matched: tuple[str, ...] = ()
        """The names of the subscriptions that the current event is for."""
        self._execution = execution
        self._client = client

    async def subscribe(
        self, filter: str | Filter, *, name: str | None = None, timeout: float = 10.0
    ) -> None:
        """Receive matching events in `on_event`. Without effect if there is a subscription of this
        name, by default the text of the filter; `NameTaken` if that one has another filter."""
        wanted = as_filter(filter)
        if not self._has(self._client.subscriptions, wanted, name):
            await self._client.subscribe(wanted, name=name, timeout=timeout)

    async def unsubscribe(self, name: str, *, timeout: float = 10.0) -> None:
        await self._client.unsubscribe(name, timeout=timeout)

    @property
    def subscriptions(self) -> dict[str, Filter]:
        """By name, also those that an earlier copy has made."""
        return {each.name: each.filter for each in self._client.subscriptions}

    async def advertise(
        self, filter: str | Filter, *, name: str | None = None, timeout: float = 10.0
    ) -> None:
        """Announce what will be published. Without effect if it is announced already."""
        wanted = as_filter(filter)
        if not self._has(self._advertisements(), wanted, name):
            await self._client.advertise(wanted, name=name, timeout=timeout)

    async def unadvertise(self, name: str, *, timeout: float = 10.0) -> None:
        """Remove an advertisement, when all that was published before is in the log. Not to be
        awaited in `start` or `on_event` after a publication: see `acknowledge`."""
        await self._execution.until_published()
        await self._client.unadvertise(name, timeout=timeout)

    def _advertisements(self) -> list[Advertisement]:
        found = self._client.registrations
        return [each for each in found if isinstance(each, Advertisement)]

    def _has(self, found: Any, wanted: Filter, name: str | None) -> bool:
        """Is there a registration like that which this copy has made, or knows of? One that an
        earlier copy has made is claimed when it is asked for first."""
        for each in found:
            if each.name == (name or str(wanted)) and each.claimed:
                if each.filter != wanted:
                    text = f"{each.name!r} has the filter {each.filter}; use another name"
                    raise NameTaken(f"{each.kind} {wanted}: {text}")
                return True
        return False

    def publish(self, event: Publishable, payload: bytes = b"") -> None:
        """Publish an event, exactly once, together with the next acknowledgement. It needs an
        advertisement."""
        body = bytes(self._client._body(event, payload))
        attributes = decode_attributes(body)
        if not any(each.filter.matches(attributes) for each in self._advertisements()):
            text = f"{self.name!r} has not advertised {attributes}; advertise it first"
            raise NotAdvertised(text)
        self._execution.publish(body)

    async def acknowledge(self) -> None:
        """Return when all that was handled and published so far is durable, with the state. For
        tasks beside `on_event`; after `on_event` has returned, the container does it anyway."""
        await self._execution.acknowledge()

    async def participate(self, handler: Handler, *, timeout: float = 10.0) -> None:
        """Take part in other clients' transactions: see `Client.participate`. Subscriptions that
        `handler` makes in a transaction are subscriptions like all others."""
        await self._client.participate(handler, timeout=timeout)

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside `on_event`. It ends with this copy, and its error ends the copy."""
        return self._execution.create_task(work)

    def move(self, to: str, *, timeout: float = 10.0) -> None:
        """Ask to be moved to another broker, after what was handled so far is acknowledged. This
        copy ends there; if the move is refused, `on_move_refused` is called. A crash forgets that
        the client has asked."""
        self._execution.move(to, timeout)
