"""Who plays: a shop, its warehouse, and those who follow what they do."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AsyncExitStack

from motet.client.client import Client
from motet.client.connecting import connect
from motet.client.subscription import Subscription
from motet.demo.account import Account
from motet.demo.overlay import Overlay
from motet.model import Event, Filter, Value

SHOP_SELLS = "kind = 'order' and id > 0"
WAREHOUSE_SENDS = "kind = 'shipment' and id > 0"

WANTS = {
    "billing": ("B2", "kind = 'order' and amount >= 500"),
    "picking": ("B3", "kind = 'order' and country in ('NL', 'BE')"),
    "support": ("B1", "kind = 'shipment'"),
    "audit": ("B2", "kind in ('order', 'shipment')"),
}
"""Who wants what, and where they are connected."""

COUNTRIES = ("BE", "DE", "FR", "NL")


class Cast:
    """All clients of the story; every event they publish or receive is in the account."""

    def __init__(self, overlay: Overlay, account: Account) -> None:
        self.overlay = overlay
        self.account = account
        self.clients: dict[str, Client] = {}
        self._stack = AsyncExitStack()
        self._draw = random.Random(7)

    async def __aenter__(self) -> Cast:
        await self._stack.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def enter(self, name: str, broker: str) -> Client:
        address = self.overlay.addresses[broker]
        client = await self._stack.enter_async_context(connect(address, client_id=name))
        self.clients[name] = client
        return client

    async def subscribe(self, name: str, client: Client, wanted: str) -> Subscription:
        """Effective across the overlay when this returns; only then is anything owed."""
        chosen = Filter.parse(wanted)
        received: list[int] = []
        subscription = await client.subscribe(chosen, callback=_into(received))
        self.account.open(name, chosen).received = received
        return subscription

    # ── what happens in a shop ───────────────────────────────────────────────────────────

    async def order(self) -> dict[str, Value]:
        event: dict[str, Value] = {
            "kind": "order",
            "id": self.account.next_id(),
            "amount": self._draw.randint(1, 1000),
            "country": self._draw.choice(COUNTRIES),
        }
        await self._publish("shop", event)
        return event

    async def shipment(self, order: int) -> None:
        event: dict[str, Value] = {
            "kind": "shipment",
            "id": self.account.next_id(),
            "order": order,
        }
        await self._publish("warehouse", event)

    async def _publish(self, publisher: str, event: dict[str, Value]) -> None:
        self.account.post(event, publisher)
        await self.clients[publisher].publish(event)


def _into(received: list[int]) -> Callable[[Event], None]:
    def take(event: Event) -> None:
        number = event["id"]
        assert isinstance(number, int)
        received.append(number)

    return take
