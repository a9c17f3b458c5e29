"""Dialling: one connection after the other to each neighbour that we are to call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from motet.errors import AddressError, Disconnected
from motet.protocol.session.messages import Goodnight
from motet.runtime.addresses import transport_for
from motet.runtime.codec import encode
from motet.runtime.contact import Contact
from motet.runtime.redial import Backoff
from motet.runtime.transport import Connection, Handler, Transport

log = logging.getLogger("motet.broker")

Meet = Callable[[Connection, str], Contact]
"""Takes a new connection to a neighbour; gives back who handles it."""
Keep = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


def transport(address: str) -> Transport:
    """What carries frames there; it says why before it closes on a peer that breaks them."""
    return transport_for(address, lambda error: encode(Goodnight(type(error).__name__, str(error))))


class Dialling:
    """Whom we call, and where. The addresses may change while the broker runs."""

    def __init__(self, transports: Callable[[str], Transport], meet: Meet, keep: Keep) -> None:
        self._transports = transports
        self._meet = meet
        self._keep = keep
        self._calls: dict[str, tuple[str, asyncio.Task[None]]] = {}

    def aim(self, addresses: Mapping[str, str]) -> list[str]:
        """Call these from now on, and nobody else; the neighbours that are called no more, or
        somewhere else."""
        changed = [name for name, (at, _) in self._calls.items() if addresses.get(name) != at]
        for name in changed:
            _, task = self._calls.pop(name)
            task.cancel()
        for name, address in addresses.items():
            if name not in self._calls:
                self._calls[name] = (address, self._keep(self._call(name, address)))
        return changed

    async def _call(self, neighbour: str, address: str) -> None:
        """One connection after the other, for ever."""
        backoff = Backoff()
        made: list[Contact] = []

        def accept(connection: Connection) -> Handler:
            made.append(self._meet(connection, neighbour))
            return made[-1]

        while True:
            try:
                await self._transports(address).connect(address, accept)
            except (Disconnected, AddressError) as problem:
                log.info("%s is not reached: %s", neighbour, problem)
            else:
                contact = made[-1]
                made.clear()
                await contact.gone.wait()
                if contact.greeted:
                    backoff.reset()
            await asyncio.sleep(backoff.wait_s())
