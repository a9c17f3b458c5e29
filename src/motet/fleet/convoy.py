"""Many clients that move at once: orders to their brokers, a bounded number at a time.

The broker of a client decides its move, and goes on with it whether or not we still listen. So
whoever stops a convoy lets the orders that are under way come to their end, and knows then which
clients have moved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from motet.client.channel import Answer, ask_all
from motet.client.orders import MoveOrders, sessions_of
from motet.errors import MisuseError, MotetError
from motet.fleet.spread import Distances

PARALLEL = 32
"""How many clients move at a time."""
MOVE_S = 10.0
"""How long one move may wait for its client, and for its target."""
SURVEY_S = 5.0
"""How long a broker that is busy with moves may take to answer."""


class Traveller(NamedTuple):
    client: str
    source: str
    connected: bool = True


class Survey:
    """All brokers of an overlay, as far as they answer."""

    def __init__(self, addresses: Mapping[str, str], answers: Mapping[str, Answer]) -> None:
        self.addresses: dict[str, str] = {}
        """By broker. One that was given by its address is known by the name that it tells."""
        self.states: dict[str, dict[str, Any]] = {}
        self.silent: dict[str, MotetError] = {}
        for given, answer in answers.items():
            if isinstance(answer, MotetError):
                self.addresses[given] = addresses[given]
                self.silent[given] = answer
            elif "mate_of" not in answer:
                self.addresses[answer["broker"]] = addresses[given]
                self.states[answer["broker"]] = answer
        links = [link for state in self.states.values() for link in state["tree"]]
        self.distances = Distances({tuple(link): None for link in links})

    @property
    def known(self) -> list[str]:
        """All brokers that somebody knows, whether or not they answer."""
        named = [name for name in self.addresses if "://" not in name]
        return sorted({*named, *self.states, *self.distances.brokers})

    @property
    def counts(self) -> dict[str, int]:
        """By broker that answers: its sessions."""
        return {name: state["session_count"] for name, state in self.states.items()}

    def is_draining(self, broker: str) -> bool:
        return broker in self.states and bool(self.states[broker]["draining"])

    def on_the_way(self, broker: str = "") -> list[str]:
        """The clients in transit from or to this broker, or to anywhere."""
        found: dict[str, None] = {}
        for state in self.states.values():
            for client, way in state["moves"]["in_transit"].items():
                if not broker or broker in (way["from"], way["to"]):
                    found[client] = None
        return list(found)

    def about_to_come(self, broker: str) -> list[str]:
        """The clients that are about to move to this broker."""
        return [
            client
            for state in self.states.values()
            for client, move in state["moves"]["departing"].items()
            if move["to"] == broker
        ]

    def check(self, broker: str) -> None:
        """Raise an error unless the broker answers."""
        if broker in self.states:
            return
        if broker in self.silent:
            raise self.silent[broker]
        known = ", ".join(self.known) or "none"
        if broker not in self.known:
            if not self.states and self.silent:
                raise next(iter(self.silent.values()))
            raise MisuseError(f"there is no broker {broker!r}; known are {known}")
        raise MisuseError(
            f"the address of {broker} is not known here; give it, or the overlay's topology file"
        )


async def survey(addresses: Mapping[str, str]) -> Survey:
    return Survey(addresses, await ask_all(addresses, SURVEY_S))


async def travellers(survey: Survey, broker: str) -> tuple[list[Traveller], dict[str, str]]:
    """The clients of a broker that may move; the others, with the reasons."""
    listed = await sessions_of(survey.addresses[broker])
    return (
        [Traveller(each.client, broker, each.connected) for each in listed if not each.stays],
        {each.client: each.stays for each in listed if each.stays},
    )


Choose = Callable[[Traveller], str | None]
"""The target of a client that is next; None: it need not move."""
Told = Callable[[Traveller, str, MotetError | None], None]
"""A client moves to this target, or stays because of the error."""


class Convoy:
    def __init__(self, addresses: Mapping[str, str], until: float) -> None:
        """No order is given after `until`, on the monotonic clock."""
        self._addresses = addresses
        self._until = until
        self._stopped = False

    def stop(self) -> None:
        """Give no further orders."""
        self._stopped = True

    @property
    def is_over(self) -> bool:
        return self._stopped or time.monotonic() >= self._until

    async def carry(self, clients: Iterable[Traveller], choose: Choose, told: Told) -> None:
        """Returns when every client has moved, or stays, or no further orders are given."""
        waiting = iter(clients)
        async with asyncio.TaskGroup() as group:
            for _ in range(PARALLEL):
                group.create_task(self._work(waiting, choose, told))

    async def _work(self, waiting: Iterable[Traveller], choose: Choose, told: Told) -> None:
        lines: dict[str, MoveOrders] = {}
        async with AsyncExitStack() as stack:
            for client in waiting:
                if self.is_over:
                    return
                target = choose(client)
                if target is None:
                    continue
                line = lines.get(client.source)
                if line is None:
                    line = MoveOrders(self._addresses[client.source], MOVE_S)
                    lines[client.source] = line
                    stack.push_async_callback(line.close)
                left_s = max(self._until - time.monotonic(), 0.1)
                try:
                    await line.move(client.client, target, min(MOVE_S, left_s))
                except MotetError as problem:
                    told(client, target, problem)
                else:
                    told(client, target, None)
