"""How many files and rooms one operation passes: four walks through an overlay in one process.

    python -m tools.walks            # one JSON object per walk

How it is counted. `motet.local(brokers=3)` runs three brokers and their clients in this thread. A
profiler (`sys.setprofile`) writes down every call of a function whose code is in `src/motet`;
comprehensions and generator expressions do not count, because they are no functions of their own
to a reader. A room is a top folder of `src/motet`, and each folder of `protocol`. Of the calls in
the order in which they happen, each one that is in another room than the one before is a room
change. Files and functions are those that were called at least once.

| walk | begins | ends |
| --- | --- | --- |
| best effort | a publication at B1, the first of its client | the subscriber at B3 has it |
| exactly once | the same, with journals and logs on disk | the subscriber has acknowledged it, and the journal of its broker has that |
| subscribe | `subscribe` at B3, with the advertiser at B1 | it returns: it is in effect everywhere |
| D-TX | a transaction at B1 begins, invites an agent at B3, who subscribes, and ends a subscription of its own; the publisher is at B2 | it is committed and settled at all brokers, and 0.3 s later, when that is acknowledged |

Timers that expire while a walk waits belong to it, so figures differ a little from run to run: each
is the median of several. At f894ba4 the review that began this count had 75, 176, 436 and 2,540 room
changes in 37, 71, 86 and 100 files; this script counts 74, 162 to 181, 436 and 2,462 in 37, 70, 87 and 101.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

import motet
from tools.source import room_of

PACKAGE = Path(motet.__file__).parent
UNCOUNTED = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
RUNS = 5
QUIET_S = 0.5
"""Until nothing is under way any more that was there before a walk."""
TAIL_S = 0.3
"""In which brokers acknowledge, and forget, what is settled."""
POLL_S = 0.005
BOUND_S = 60.0


class Walk:
    """`with walk:` counts what happens inside; it can be entered several times."""

    def __init__(self) -> None:
        self.calls: list[CodeType] = []
        """In their order; comprehensions and generator expressions, too."""
        self._prefix = f"{PACKAGE}/"

    def __enter__(self) -> Walk:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._prefix):
            self.calls.append(code)

    async def until(self, true: Callable[[], bool]) -> None:
        """Walk on until a condition is true; looking does not count."""
        async with asyncio.timeout(BOUND_S):
            while not true():
                with self:
                    await asyncio.sleep(POLL_S)

    def figures(self) -> dict[str, int]:
        calls = [code for code in self.calls if code.co_name not in UNCOUNTED]
        rooms = [room_of(Path(code.co_filename).relative_to(PACKAGE)) for code in calls]
        return {
            "calls": len(calls),
            "functions": len({(code.co_filename, code.co_qualname) for code in calls}),
            "files": len({code.co_filename for code in calls}),
            "rooms": len(set(rooms)),
            "room changes": sum(a != b for a, b in pairwise(rooms)),
        }


async def best_effort(walk: Walk) -> None:
    async with motet.local(brokers=3) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B3")
        await alice.advertise("level >= 0")
        alarms = await bob.subscribe("level > 7")
        await asyncio.sleep(QUIET_S)
        with walk:
            await alice.send({"level": 9}, best_effort=True)
            await anext(alarms)


async def exactly_once(walk: Walk) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with motet.local(brokers=3, data=folder) as overlay:
            alice = await overlay.connect("alice", broker="B1")
            bob = await overlay.connect("bob", broker="B3")
            await alice.advertise("level >= 0")
            alarms = await bob.subscribe("level > 7")
            await asyncio.sleep(QUIET_S)

            def facts() -> int:
                return int(overlay.status()["B3"]["journal"]["appended"])

            before = facts()
            with walk:
                await alice.send({"level": 9})
                await anext(alarms)
                bob.acknowledge()
            await walk.until(lambda: facts() > before)


async def subscribe(walk: Walk) -> None:
    async with motet.local(brokers=3) as overlay:
        alice = await overlay.connect("alice", broker="B1")
        bob = await overlay.connect("bob", broker="B3")
        await alice.advertise("level >= 0")
        with walk:
            await bob.subscribe("level > 7")


async def transaction(walk: Walk) -> None:
    async with motet.local(brokers=3) as overlay:
        source = await overlay.connect("source", broker="B2")
        dispatcher = await overlay.connect("dispatcher", broker="B1")
        agent = await overlay.connect("agent", broker="B3")
        await source.advertise("instance is not null")
        await dispatcher.advertise("assign is not null")
        updates = await dispatcher.subscribe("instance = 'x1'")

        async def take(invitation: motet.Invitation, tx: motet.Transaction) -> None:
            await tx.subscribe(f"instance = '{invitation.event['instance']}'")

        await agent.participate(take)
        await agent.subscribe("assign = 'agent'")
        await asyncio.sleep(QUIET_S)

        def settled() -> bool:
            told = [each["transactions"] for each in overlay.status().values()]
            return not any(
                each["open"] or each["deciding"] or each["taking_effect"] for each in told
            )

        with walk:
            async with dispatcher.transaction() as tx:
                await tx.invite({"assign": "agent", "instance": "x1"})
                await tx.unsubscribe(updates)
        await walk.until(settled)
        with walk:
            await asyncio.sleep(TAIL_S)


WALKS: dict[str, Callable[[Walk], Coroutine[Any, Any, None]]] = {
    "best effort": best_effort,
    "exactly once": exactly_once,
    "subscribe": subscribe,
    "D-TX": transaction,
}


def measure(name: str, runs: int = RUNS) -> dict[str, int]:
    found = []
    for _ in range(runs):
        walk = Walk()
        asyncio.run(WALKS[name](walk))
        found.append(walk.figures())
    return {what: int(median(each[what] for each in found)) for what in found[0]}


def main() -> None:
    for name in WALKS:
        print(json.dumps({"walk": name, **measure(name)}), flush=True)


if __name__ == "__main__":
    main()
