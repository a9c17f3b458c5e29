"""An agent whose code runs in a broker, and which follows its work while work is dispatched to it.

Run it: `python examples/moving_agent.py`

A1 begins at B4. Each time it has handled a number of updates, it moves to the broker that most of
them came from. Meanwhile the dispatcher goes on handing instances over to it, as in dispatching.py.
Its state, the updates that it has handled and the receipts that it publishes go along: each update
has one receipt, wherever the agent was.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

from workflow import TREE, Environment, Handler, report, until_handled, updates_of

import motet
from motet.errors import Aborted, MotetError
from motet.hosted import Context, Hosted
from motet.model import Event

HALVES = [[f"x{number}" for number in range(first, first + 4)] for first in (1, 5)]
AGENT = """
[hosted.A1]
class = "moving_agent:Agent"
home = "B4"
"""
ENOUGH = 50
"""After so many updates the agent looks where they came from."""


class Agent(Hosted):
    """Handles the updates of the instances that it is assigned."""

    context: Context

    async def start(self, context: Context, state: bytes | None) -> None:
        self.context = context
        self.handled = 0 if state is None else int(json.loads(state)["handled"])
        self.origins: Counter[str] = Counter()
        await context.advertise("agent = 'A1'")
        await context.participate(self.take_over)
        await context.subscribe("assign = 'A1'")

    async def take_over(self, invitation: motet.Invitation, tx: motet.Transaction) -> None:
        instance = str(invitation.event["instance"])
        await tx.subscribe(updates_of(instance), name=instance)

    async def on_event(self, event: Event) -> None:
        if "step" not in event:
            return  # what it is assigned, it has taken over in the transaction
        self.handled += 1
        receipt = {name: event[name] for name in ("instance", "step")}
        broker = self.context.broker
        self.context.publish({"agent": "A1", "at": broker, "handled": self.handled, **receipt})
        self.origins[event.pubend.partition(".")[0]] += 1
        if self.handled % ENOUGH == 0:
            best, _ = self.origins.most_common(1)[0]
            self.origins.clear()
            if best != broker:
                self.context.move(best)

    async def on_move_refused(self, error: MotetError) -> None:
        """It takes part in a transaction, for example. It asks again after some more updates."""

    def state(self) -> bytes:
        return json.dumps({"handled": self.handled}).encode()


@dataclass
class Receipts(Handler):
    """What the agent has handled, as it has published it."""

    places: list[str] = field(default_factory=list)

    async def _read(self, subscription: motet.Subscription) -> None:
        async for event in subscription:
            self.seen.setdefault(str(event["instance"]), []).append(int(str(event["step"])))
            if self.places[-1:] != [event["at"]]:
                self.places.append(str(event["at"]))
                print(f"A1 works at {event['at']}, and has handled {event['handled']} updates")


async def main() -> None:
    async with motet.local(motet.Topology.parse(TREE + AGENT)) as overlay:
        environments = [await overlay.connect(f"E{n}", broker=f"B{n}") for n in (1, 2)]
        dispatcher = Handler(await overlay.connect("D", broker="B3"))
        receipts = Receipts(await overlay.connect("receipts of A1", broker="B5"))
        for client in environments:
            await client.advertise("process = 'p1'")
        await dispatcher.client.advertise("assign is not null")
        receipts.handle(await receipts.client.subscribe("agent = 'A1'"))
        for instance in [*HALVES[0], *HALVES[1]]:
            updates = await dispatcher.client.subscribe(updates_of(instance), name=instance)
            dispatcher.handle(updates)
        await ready(overlay)

        steps: dict[str, int] = {}
        for client, instances in zip(environments, HALVES, strict=True):
            environment = Environment(client, instances)
            for instance in instances:
                await asyncio.sleep(0.05)
                await dispatch(dispatcher.client, instance)
            await followed(receipts, client.broker)
            steps |= await environment.stop()
        handlers = [dispatcher, receipts]
        await until_handled(handlers, steps)
        report(handlers, steps)
        print(f"A1 has followed its work: {' → '.join(receipts.places)}")


async def ready(overlay: motet.client.LocalOverlay) -> None:
    """The agent runs at its home."""
    async with asyncio.timeout(30):
        while overlay.status()["B4"]["container"]["A1"]["state"] != "running":
            await asyncio.sleep(0.01)


async def dispatch(client: motet.Client, instance: str) -> None:
    """Hand an instance over. If the agent does not answer in time, try again."""
    while True:
        try:
            async with client.transaction() as tx:
                await tx.invite({"assign": "A1", "instance": instance})
                await tx.unsubscribe(instance)
        except Aborted as problem:
            print(f"{instance} stays with D for now: {problem}")
        else:
            print(f"{instance} was dispatched to A1: {tx.id}")
            return


async def followed(receipts: Receipts, broker: str) -> None:
    """The agent has followed the updates to their broker."""
    async with asyncio.timeout(30):
        while receipts.places[-1:] != [broker]:
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main())
