"""One run from beginning to end: start, storm, peace, probes, stop, judgement."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from motet.chaos.chronicle import Chronicle, Tell
from motet.chaos.fleet import BrokerProcess, free_ports
from motet.chaos.hands import Hands
from motet.chaos.judgement import Report, judge
from motet.chaos.lookout import Lookout
from motet.chaos.plan import Plan
from motet.chaos.proxy import HOST, LinkProxy
from motet.chaos.storm import Storm
from motet.chaos.traffic import Traffic
from motet.errors import UnavailableError
from motet.testing.checkers import completeness, exactly_once
from motet.testing.topology import Edge, edge_of

START_BOUND_S = 30.0
ARRIVAL_BOUND_S = 15.0
SURE_ARRIVAL_BOUND_S = 45.0
"""Who was asked in vain for long is asked again after ten seconds, hop by hop."""
POLL_S = 0.1
SURE_POLL_S = 1.0


class Run:
    """`await Run(plan, directory).report()`; everything it keeps is in the directory."""

    def __init__(self, plan: Plan, directory: Path, tell: Tell = str) -> None:
        self.plan = plan
        self.directory = directory
        self.chronicle = Chronicle(
            plan.tree, covering=plan.covering, hop_s=plan.hop_s, lease_s=plan.lease_s
        )
        self.chronicle.tell = tell
        self.stage = "starting"
        self._stormy_since: float | None = None
        names = plan.tree.brokers
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._proxies: dict[Edge, LinkProxy] = {
            edge_of(*edge): LinkProxy(ports[edge[1]], self._lost(edge_of(*edge)))
            for edge in plan.topology.edges
        }
        self._ports = ports
        self._brokers: dict[str, BrokerProcess] = {}
        addresses = {name: f"motet://{HOST}:{port}" for name, port in ports.items()}
        kind = Hands if plan.profile == "transactions" else Traffic
        self.traffic = kind(plan, self.chronicle, addresses)
        self._lookout = Lookout(self.chronicle, self._brokers, self._proxies, self.traffic)

    def _lost(self, edge: Edge) -> Callable[[], None]:
        return lambda: self.chronicle.notice(edge)

    @property
    def stormed_s(self) -> float:
        """For how long things have been breaking."""
        since = self._stormy_since
        return 0.0 if since is None else self.chronicle.now() - since

    async def report(self) -> Report:
        """Run it all. Leaves no process, whatever happens."""
        async with self._overlay():
            await self._storm()
            await self._peace()
            await self._probe()
            await self._stop()
        self.stage = "judging"
        folders = {name: broker.data for name, broker in self._brokers.items()}
        report = judge(self.plan, self.chronicle, folders)
        story = "\n".join(self.chronicle.story)
        (self.directory / "story.txt").write_text(story + "\n", encoding="utf-8")
        return report

    # ── the overlay ──────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _overlay(self) -> AsyncIterator[None]:
        try:
            for proxy in self._proxies.values():
                await proxy.open()
            for name in self.plan.tree.brokers:
                options = self._options(name)
                self._brokers[name] = BrokerProcess(
                    name, self._ports[name], options, self.directory
                )
            starts = (broker.start() for broker in self._brokers.values())
            for result in await asyncio.gather(*starts, return_exceptions=True):
                if result is not None:
                    raise result
            problem = await self._lookout.until_whole(START_BOUND_S)
            if problem:
                raise UnavailableError(f"the overlay did not start: {problem}")
            yield
        finally:
            self.chronicle.recording = False
            for broker in self._brokers.values():
                broker.end()
            await self.traffic.pack_up()
            for proxy in self._proxies.values():
                await proxy.close()

    def _options(self, name: str) -> list[str]:
        plan, topology = self.plan, self.plan.topology
        options = ["--data", str(self.directory / name), "--durability", plan.durability]
        options += ["--snapshot-bytes", str(plan.snapshot_bytes)]
        options += ["--lease", f"{plan.lease_s:g}", "--heartbeat", f"{plan.heartbeat_s:g}"]
        if plan.covering:
            options.append("--covering")
        else:
            options += ["--root", topology.decider]
        dialled = topology.place(name).links
        for other in topology.neighbours(name):
            port = self._proxies[edge_of(name, other)].port
            way = f"{other}=motet://{HOST}:{port}" if other in dialled else other
            options += ["--link", way]
        return options

    # ── the stages ───────────────────────────────────────────────────────────────────────

    async def _storm(self) -> None:
        chronicle = self.chronicle
        storm = Storm(self.plan, chronicle, self._brokers, self._proxies, self.traffic)
        async with self._meanwhile(self._lookout.run()):
            await self.traffic.begin()
            self.stage, self._stormy_since = "storm", chronicle.now()
            chronicle.note("the storm begins")
            async with self._meanwhile(self.traffic.run()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.plan.seconds):
                        await storm.run(self.plan.strikes())
                        await asyncio.Event().wait()  # for the rest of the time
        self.stage = "mending"
        chronicle.note("the storm is over: everything is mended")
        await storm.mend()

    @asynccontextmanager
    async def _meanwhile(self, work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Work that goes on until the block ends, unless it fails before."""
        task = asyncio.ensure_future(work)
        try:
            yield
        finally:
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(result, Exception):
                detail = f"{type(result).__name__}: {result}"
                self.chronicle.history.odd("invariants", detail)

    async def _peace(self) -> None:
        self.stage = "settling"
        chronicle, history = self.chronicle, self.chronicle.history
        problem = await self._lookout.until_at_rest(self.plan.settle_s)
        if problem:
            history.odd("settles", f"not at rest after {self.plan.settle_s:g} s: {problem}")
        for application in self.traffic.applications:
            application.read_receipts()
        history.living = [
            application.machine.session
            for application in self.traffic.living
            if application.machine.session is not None
        ]
        history.settled_at = chronicle.now()
        chronicle.note("everything is at rest")

    async def _probe(self) -> None:
        """The last round: no excuse is left."""
        self.stage = "probing"
        history = self.chronicle.history
        first = len(history.events)
        with contextlib.suppress(TimeoutError):  # the checkers will find what is missing
            patient = self.plan.sure or self.plan.profile == "transactions"
            bound_s = SURE_ARRIVAL_BOUND_S if patient else ARRIVAL_BOUND_S
            async with asyncio.timeout(bound_s):
                await self.traffic.probe()
                last_round = dataclasses.replace(history, events=history.events[first:])
                while completeness.check(last_round).violations:
                    await asyncio.sleep(POLL_S)
                while self.plan.sure and exactly_once.missing(history):
                    await asyncio.sleep(SURE_POLL_S)
        self.chronicle.note(f"{len(history.events) - first} last events were published")
        if isinstance(self.traffic, Hands):
            await self.traffic.judge()
            await self.traffic.leave()
            problem = await self._lookout.until_at_rest(self.plan.settle_s)
            if problem:
                history.odd("settles", f"not at rest after all have left: {problem}")

    async def _stop(self) -> None:
        """While the clients' sessions live: what the folders hold then must be all of it."""
        self.stage = "stopping"
        self.chronicle.recording = False
        stopped = await asyncio.gather(
            *(broker.stop() for broker in self._brokers.values()), return_exceptions=True
        )
        for problem in stopped:
            if isinstance(problem, BaseException):
                self.chronicle.history.odd("settles", str(problem))
