"""Use case 1 of the paper: a dispatcher hands instances to agents, while their updates keep coming.

Run it: `python examples/dispatching.py`

The dispatcher does not know what an agent does to take an instance over: it invites one, and the
agent acts in its own handler. Either both have happened, at one point of the stream, or neither.
"""

from __future__ import annotations

import asyncio

from workflow import TREE, Environment, Handler, report, until_handled, updates_of

import motet

INSTANCES = [f"x{number}" for number in range(1, 7)]


async def main() -> None:
    async with motet.local(motet.Topology.parse(TREE)) as overlay:
        e2 = await overlay.connect("E2", broker="B2")
        dispatcher = Handler(await overlay.connect("D", broker="B3"))
        agents = [
            Handler(await overlay.connect("A1", broker="B4")),
            Handler(await overlay.connect("A2", broker="B5")),
        ]
        await e2.advertise("process = 'p1'")
        await dispatcher.client.advertise("assign is not null")
        for agent in agents:
            await be_ready(agent)
        for instance in INSTANCES:
            updates = await dispatcher.client.subscribe(updates_of(instance), name=instance)
            dispatcher.handle(updates)

        environment = Environment(e2, INSTANCES)
        for number, instance in enumerate(INSTANCES):
            agent = agents[number % len(agents)].client.client_id
            await asyncio.sleep(0.05)
            async with dispatcher.client.transaction() as tx:
                await tx.invite({"assign": agent, "instance": instance})
                await tx.unsubscribe(instance)
            print(f"{instance} was dispatched to {agent}: {tx.id}")
        await asyncio.sleep(0.05)
        steps = await environment.stop()
        handlers = [dispatcher, *agents]
        await until_handled(handlers, steps)
        report(handlers, steps)
        print(await dispatcher.client.explain(tx))


async def be_ready(agent: Handler) -> None:
    """An agent subscribes to what it is assigned, as part of whatever transaction assigns it."""

    async def take_over(invitation: motet.Invitation, tx: motet.Transaction) -> None:
        instance = str(invitation.event["instance"])
        agent.handle(await tx.subscribe(updates_of(instance), name=instance))

    await agent.client.participate(take_over)
    await agent.client.subscribe(f"assign = '{agent.client.client_id}'")


if __name__ == "__main__":
    asyncio.run(main())
