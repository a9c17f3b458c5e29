"""Use case 2 of the paper: a consolidator takes instances from two agents at once, by a plan.

Run it: `python examples/consolidation.py`

All operations are known in advance, so they form a plan, which is executed without a round of
acknowledgements. It also publishes, in the same transaction, that the instances have moved.
"""

from __future__ import annotations

import asyncio

from workflow import TREE, Environment, Handler, report, until_handled, updates_of

import motet

AGENTS = {"A1": ["x1", "x3"], "A2": ["x2", "x4"]}
INSTANCES = ["x1", "x2", "x3", "x4"]


async def main() -> None:
    async with motet.local(motet.Topology.parse(TREE)) as overlay:
        e1 = await overlay.connect("E1", broker="B1")
        await e1.advertise("process = 'p1'")
        agents = []
        for (name, instances), broker in zip(AGENTS.items(), ("B4", "B5"), strict=True):
            agent = Handler(await overlay.connect(name, broker=broker))
            await agent.client.participate()
            await agent.client.advertise(f"moved is not null and by = '{name}'")
            for instance in instances:
                updates = await agent.client.subscribe(updates_of(instance), name=instance)
                agent.handle(updates)
            agents.append(agent)
        consolidator = Handler(await overlay.connect("C", broker="B3"))
        await consolidator.client.participate(on_started=consolidator.handle)
        news = await consolidator.client.subscribe("moved is not null")

        environment = Environment(e1, INSTANCES)
        await asyncio.sleep(0.2)
        plan = consolidate()
        print(await consolidator.client.explain(plan))
        name = await consolidator.client.execute(plan, key="scale-in-1")
        print(f"consolidated: {name} is {await consolidator.client.outcome(name)}")
        again = await consolidator.client.execute(plan, key="scale-in-1")
        print(f"with the same key it is the same transaction: {again == name}")
        moved = [await anext(news) for _ in INSTANCES]
        order = [str(event["moved"]) for event in moved]
        print(f"in plan order, though two agents published: {', '.join(order)}")
        assert order == INSTANCES, order
        assert {event.transaction for event in moved} == {name}
        await asyncio.sleep(0.1)
        steps = await environment.stop()
        handlers = [*agents, consolidator]
        await until_handled(handlers, steps)
        report(handlers, steps)


def consolidate() -> motet.Plan:
    """Instance by instance: its agent lets it go, the consolidator takes it, the agent says so."""
    plan = motet.Plan()
    for instance in INSTANCES:
        agent = next(name for name, own in AGENTS.items() if instance in own)
        ends = plan.unsubscribe(agent, instance, after=[])
        begins = plan.subscribe("C", updates_of(instance), name=instance, after=[ends])
        plan.publish(agent, {"moved": instance, "by": agent}, after=[begins])
    return plan


if __name__ == "__main__":
    asyncio.run(main())
