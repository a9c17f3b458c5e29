"""A workflow system over Motet, as in figure 1(a) of the paper: five brokers, environments that
update process instances all the time, and agents that each handle some of them.

        E1 ─ B1            B4 ─ A1
               ╲          ╱
                 B3 ─────
               ╱          ╲
        E2 ─ B2            B5 ─ A2
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

import motet

TREE = """
[overlay]
root = "B3"

[brokers.B1]
listen = "127.0.0.1:7701"
[brokers.B2]
listen = "127.0.0.1:7702"
[brokers.B3]
listen = "127.0.0.1:7703"
links = ["B1", "B2"]
[brokers.B4]
listen = "127.0.0.1:7704"
links = ["B3"]
[brokers.B5]
listen = "127.0.0.1:7705"
links = ["B3"]
"""


def updates_of(instance: str) -> str:
    """The filter for the updates of one instance."""
    return f"process = 'p1' and instance = '{instance}'"


@dataclass
class Handler:
    """A client that handles instances, with the numbers of the updates that it has seen of each."""

    client: motet.Client
    seen: dict[str, list[int]] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def handle(self, subscription: motet.Subscription) -> None:
        self.tasks.append(asyncio.create_task(self._read(subscription)))

    async def _read(self, subscription: motet.Subscription) -> None:
        async for event in subscription:
            self.seen.setdefault(str(event["instance"]), []).append(int(str(event["step"])))


class Environment:
    """Updates instances, one after the other, until it is stopped."""

    def __init__(self, client: motet.Client, instances: list[str]) -> None:
        self._client = client
        self.steps = dict.fromkeys(instances, 0)
        self._running = True
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._running:
            for instance in self.steps:
                event = {"process": "p1", "instance": instance, "step": self.steps[instance]}
                await self._client.send(event)
                self.steps[instance] += 1
            await asyncio.sleep(0.0005)
        await self._client.flush()

    async def stop(self) -> dict[str, int]:
        """How many updates each instance has had."""
        self._running = False
        await self._task
        return self.steps


async def until_handled(handlers: list[Handler], steps: dict[str, int]) -> None:
    """Wait until the handlers have seen everything that was published."""
    async with asyncio.timeout(30):
        while any(
            sum(len(each.seen.get(instance, ())) for each in handlers) < count
            for instance, count in steps.items()
        ):
            await asyncio.sleep(0.01)


def report(handlers: list[Handler], steps: dict[str, int]) -> None:
    """Each update must have gone to exactly one handler: one stretch of the stream to each, without
    a gap, an overlap or a change of order. Ends the program if not."""
    wrong = 0
    for instance, count in sorted(steps.items()):
        parts = [(each.client.client_id, each.seen.get(instance, [])) for each in handlers]
        told = ", ".join(f"{who} {p[0]}-{p[-1]}" for who, p in parts if p)
        whole = [step for _, part in parts for step in part] == list(range(count))
        wrong += not whole
        print(f"  {instance}: {count} updates: {told}{'' if whole else '   NOT EXACTLY ONCE'}")
    if wrong:
        sys.exit(f"{wrong} instances were not handed over exactly once")
    print("every update was handled by exactly one side")
