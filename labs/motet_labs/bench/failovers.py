"""A site with a standby and a witness, as processes; and a worker with one publisher and two
subscribers, which sees how long they stand still when the primary is killed.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Final

import motet.ordering
from motet.client.channel import ask_all
from motet.errors import UnavailableError
from motet.fleet.process import SiteProcess, WitnessProcess, free_addresses, running
from motet.runtime.loop import run
from motet_labs.processes import serve, tell

TOPICS: Final = ("one", "two")
PAUSE_S: Final = 0.002
"""Between two publications."""
PATIENCE_S: Final = 60.0
POLL_S: Final = 0.02


class SitePair:
    """Two processes of one site and their witness, started and in step."""

    def __init__(self, folder: Path, stack: ExitStack, *options: str) -> None:
        witness, *listen = free_addresses(3)
        folder.mkdir()
        stack.enter_context(running(WitnessProcess("witness", ("--listen", witness), folder)))
        self.primary, self.standby = (
            self._site(folder / f"{at}", stack, listen, at, ("--witness", witness, *options))
            for at in range(2)
        )
        self.await_step()

    @staticmethod
    def _site(
        folder: Path, stack: ExitStack, listen: list[str], at: int, options: tuple[str, ...]
    ) -> SiteProcess:
        folder.mkdir()
        if at:
            options += ("--standby", listen[0])
        process = SiteProcess("S1", ("--listen", listen[at], *options), folder)
        stack.enter_context(running(process))
        return process

    def fail_over(self) -> None:
        """Kill the primary. The standby becomes it."""
        self.primary.kill()
        run(self.primary.ended())
        self.primary, self.standby = self.standby, self.primary

    def come_back(self) -> None:
        run(self.standby.start())
        self.await_step()

    def await_step(self) -> None:
        """Wait until the standby is in step."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            answer = run(ask_all({"it": self.primary.address}, PATIENCE_S))["it"]
            if isinstance(answer, dict):
                pair = answer["pair"]
                if pair["role"] == "primary" and pair["in_step"]:
                    return
            time.sleep(POLL_S)
        raise UnavailableError("the standby is not in step")


class Watch:
    """Worker."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._published = 0
        self._seen: list[list[bytes]] = []
        self._last = self._longest_s = 0.0
        self._enough = False

    async def open(self, sequencer: str) -> None:
        clients = [
            await self._stack.enter_async_context(
                motet.ordering.connect("memory://watch", sequencer=sequencer, client_id=name)
            )
            for name in ("publisher", "x", "y")
        ]
        for client in clients[1:]:
            stream = await self._stack.enter_async_context(client.subscribe(*TOPICS))
            self._seen.append([])
            reading = self._read(stream, self._seen[-1])
            self._tasks.append(asyncio.create_task(reading))
        self._tasks.insert(0, asyncio.create_task(self._publish(clients[0])))
        await self._delivered(len(TOPICS))

    async def _publish(self, client: Any) -> None:
        while not self._enough:
            await client.send(TOPICS[self._published % len(TOPICS)], b"%d" % self._published)
            self._published += 1
            await asyncio.sleep(PAUSE_S)
        await client.flush(timeout=PATIENCE_S)

    async def _read(self, stream: Any, seen: list[bytes]) -> None:
        async for event in stream:
            seen.append(event.payload)
            if seen is self._seen[0]:
                now = time.perf_counter()
                self._longest_s = max(self._longest_s, now - self._last)
                self._last = now

    async def _delivered(self, more: int) -> None:
        enough = len(self._seen[0]) + more
        async with asyncio.timeout(PATIENCE_S):
            while len(self._seen[0]) < enough:
                await asyncio.sleep(POLL_S)

    async def begin(self) -> None:
        self._longest_s, self._last = 0.0, time.perf_counter()

    async def silence(self, events: int) -> dict[str, float]:
        """The longest time without an event since `begin`, when so many more have come."""
        await self._delivered(events)
        return {"longest_s": self._longest_s}

    async def end(self) -> dict[str, bool]:
        """Whether all events came, once, in the same order."""
        self._enough = True
        await self._tasks[0]
        async with asyncio.timeout(PATIENCE_S):
            while any(len(seen) < self._published for seen in self._seen):
                await asyncio.sleep(POLL_S)
        one, other = self._seen
        whole = sorted(one, key=int) == [b"%d" % at for at in range(self._published)]
        return {"right": one == other and whole}


async def watches() -> None:
    tell({"ready": True})
    await serve(Watch())
