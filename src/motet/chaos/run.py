"""One run from beginning to end: start, storm, repair, probes, stop, judgement."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from motet.broker.overlay.topology import Topology
from motet.chaos import stays
from motet.chaos.chronicle import Chronicle, Tell
from motet.chaos.hands import Hands
from motet.chaos.judgement import ChaosReport, judge
from motet.chaos.lookout import Lookout
from motet.chaos.movers import Movers
from motet.chaos.plan import ChaosPlan
from motet.chaos.storm import Storm
from motet.chaos.traffic import ChaosTraffic
from motet.errors import UnavailableError
from motet.fleet.fleet import Fleet, links
from motet.fleet.process import free_addresses
from motet.testing.checkers import completeness, exactly_once
from motet.testing.topology import edge_of

START_LIMIT_S = 120.0
ARRIVAL_BOUND_S = 15.0
SURE_ARRIVAL_BOUND_S = 45.0
"""A broker that did not answer nacks for long is asked again after ten seconds, at each hop."""
HISTORY = "history"
"""The folder for the audit, in that of the run."""
TRAFFIC: dict[str, type[ChaosTraffic]] = {"transactions": Hands, "mobility": Movers}
"""By profile; all others have the ordinary one."""
POLL_S = 0.1
SURE_POLL_S = 1.0


class ChaosRun:
    """`await ChaosRun(plan, directory).report()`; all its files are in the directory."""

    def __init__(self, plan: ChaosPlan, directory: Path, tell: Tell = str) -> None:
        self.plan = plan
        self.directory = directory
        self.chronicle = Chronicle(
            plan.tree, covering=plan.covering, hop_s=plan.hop_s, lease_s=plan.lease_s
        )
        self.chronicle.tell = tell
        self.chronicle.folder = directory / HISTORY if plan.history else None
        self.stage = "starting"
        self._stormy_since: float | None = None
        topology = self._topology()
        self._fleet = Fleet(
            topology,
            directory,
            proxied=links(topology),
            lost=lambda link: self.chronicle.notice(edge_of(*link)),
            options=self._options(),
        )
        self._brokers = self._fleet.processes
        self._proxies = {edge_of(*link): proxy for link, proxy in self._fleet.proxies.items()}
        kind = TRAFFIC.get(plan.profile, ChaosTraffic)
        self.traffic = kind(plan, self.chronicle, self._fleet.addresses)
        self._lookout = Lookout(self.chronicle, self._brokers, self._proxies, self.traffic)

    def _options(self) -> tuple[str, ...]:
        """Of all brokers."""
        found = ("--snapshot-bytes", str(self.plan.snapshot_bytes))
        folder = self.chronicle.folder
        return found if folder is None else (*found, "--history", str(folder.absolute()))

    def _topology(self) -> Topology:
        plan, topology = self.plan, self.plan.topology
        addresses = free_addresses(len(topology.brokers))
        return dataclasses.replace(
            topology,
            brokers=tuple(
                dataclasses.replace(place, listen=address)
                for place, address in zip(topology.brokers, addresses, strict=True)
            ),
            covering=plan.covering,
            durability=plan.durability,
            lease_s=plan.lease_s,
            heartbeat_s=plan.heartbeat_s,
        )

    @property
    def stormed_s(self) -> float:
        """For how long faults have been injected."""
        since = self._stormy_since
        return 0.0 if since is None else self.chronicle.now() - since

    async def report(self) -> ChaosReport:
        """Run all stages. Leaves no process behind, whatever happens."""
        async with self._overlay():
            await self._storm()
            await self._peace()
            await self._probe()
            await self._stop()
        self.stage = "judging"
        folders = {name: broker.data for name, broker in self._brokers.items()}
        if self.plan.moves and self.chronicle.folder is not None:
            verdict, transit_s = stays.watch(self.chronicle.folder)
            self.chronicle.verdicts.append(verdict)
            self.chronicle.travelled(transit_s)
        report = judge(self.plan, self.chronicle, folders)
        story = "\n".join(self.chronicle.story)
        (self.directory / "story.txt").write_text(story + "\n", encoding="utf-8")
        return report

    # ── the overlay ──────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _overlay(self) -> AsyncIterator[None]:
        try:
            await self._fleet.start_all()
            problem = await self._lookout.until_whole(START_LIMIT_S)
            if problem:
                raise UnavailableError(f"the overlay did not start: {problem}")
            yield
        finally:
            self.chronicle.recording = False
            for broker in self._brokers.values():
                broker.end()
            await self.traffic.pack_up()
            await self._fleet.end()

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
        chronicle.note("all faults are over and repaired")
        await storm.mend()

    @asynccontextmanager
    async def _meanwhile(self, work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Do work in the background until the block ends; a failure of it is a violation."""
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
            application.witness.session
            for application in self.traffic.living
            if application.witness.session is not None
        ]
        history.settled_at = chronicle.now()
        chronicle.note("everything is at rest")

    async def _probe(self) -> None:
        """The last round, without faults."""
        self.stage = "probing"
        history = self.chronicle.history
        first = len(history.events)
        with contextlib.suppress(TimeoutError):  # the checkers will find missing events
            patient = self.plan.sure or self.plan.deals
            bound_s = SURE_ARRIVAL_BOUND_S if patient else ARRIVAL_BOUND_S
            async with asyncio.timeout(bound_s):
                await self.traffic.probe()
                last_round = dataclasses.replace(history, events=history.events[first:])
                while completeness.check(last_round).violations:
                    await asyncio.sleep(POLL_S)
                while self.plan.sure and exactly_once.missing(history):
                    await asyncio.sleep(SURE_POLL_S)
        self.chronicle.note(f"{len(history.events) - first} last events were published")
        if self.plan.deals:
            await self.traffic.judge()
            await self.traffic.leave()
            problem = await self._lookout.until_at_rest(self.plan.settle_s)
            if problem:
                history.odd("settles", f"not at rest after all have left: {problem}")

    async def _stop(self) -> None:
        """Stop the brokers while the clients' sessions live: their folders must hold everything."""
        self.stage = "stopping"
        self.chronicle.recording = False
        for name in await self._fleet.stop():
            self.chronicle.history.odd("settles", f"{name} did not stop when it was asked to")
