"""Polls the status of the brokers; trusts the state of a link only if both ends agree.

A disturbed place has recovered when that was observed: a broker when it answers; a link when both
of its ends report it as up, nothing on it waits for an acknowledgement, and none of its
connections has opened or closed since before the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from motet.chaos.chronicle import Chronicle, named
from motet.chaos.traffic import ChaosTraffic
from motet.client.channel import ask_all
from motet.errors import MotetError, UnavailableError
from motet.fleet.process import BrokerProcess
from motet.fleet.proxy import LinkProxy
from motet.testing.topology import Edge

POLL_S = 0.25
PATIENCE_S = 1.5

Answers = dict[str, dict[str, Any]]
"""Status by broker that has answered."""


class Lookout:
    def __init__(
        self,
        chronicle: Chronicle,
        brokers: Mapping[str, BrokerProcess],
        proxies: Mapping[Edge, LinkProxy],
        traffic: ChaosTraffic,
    ) -> None:
        self._chronicle = chronicle
        self._brokers = brokers
        self._proxies = proxies
        self._traffic = traffic

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> Answers:
        """Poll once; closes the fault intervals of places that have recovered."""
        await self._revive()
        changes = {edge: proxy.changes for edge, proxy in self._proxies.items()}
        asked = {
            name: broker.address
            for name, broker in self._brokers.items()
            if broker.running and not self._chronicle.is_afflicted(name)
        }
        answers = {
            name: answer
            for name, answer in (await ask_all(asked, PATIENCE_S)).items()
            if not isinstance(answer, MotetError)
        }
        for name, answer in answers.items():
            life = (name, self._brokers[name].starts)
            self._chronicle.nacks[life] = answer["delivery"]["sent"]["nacks"]
            if self._chronicle.is_troubled(name) and not self._chronicle.is_afflicted(name):
                self._chronicle.well(name)
        for edge, proxy in self._proxies.items():
            steady = proxy.connected and proxy.changes == changes[edge]
            if self._chronicle.is_troubled(edge) and steady and self._is_up(edge, answers):
                self._chronicle.well(edge)
        return answers

    def _is_up(self, edge: Edge, answers: Answers) -> bool:
        one, two = edge
        if one not in answers or two not in answers:
            return False
        if self._chronicle.is_afflicted(edge, one, two):
            return False
        return all(
            link["phase"] == "up" and not link["unacknowledged"]
            for link in (answers[one]["links"][two], answers[two]["links"][one])
        )

    async def _revive(self) -> None:
        """Restart brokers that ended by themselves; each is a violation, but the run goes on."""
        for broker in self._brokers.values():
            if broker.running or broker.expected or self._chronicle.is_afflicted(broker.name):
                continue
            detail = f"{broker.name} ended by itself with {broker.ending}; see {broker.log}"
            self._chronicle.history.odd("invariants", detail)
            self._chronicle.notice(broker.name)
            try:
                await broker.start()
            except UnavailableError as problem:
                self._chronicle.history.odd("invariants", str(problem))

    # ── coming to rest ───────────────────────────────────────────────────────────────────

    async def until_whole(self, bound_s: float) -> str:
        """Wait until every broker answers and every link is up; returns what is not."""
        return await self._until(self._ailing, bound_s)

    async def until_at_rest(self, bound_s: float) -> str:
        """Wait until nothing is in progress; returns what still is."""
        return await self._until(self._restless, bound_s)

    async def _until(self, wrong: Callable[[Answers], str], bound_s: float) -> str:
        deadline = self._chronicle.now() + bound_s
        while problem := wrong(await self.look()):
            if self._chronicle.now() > deadline:
                return problem
            await asyncio.sleep(POLL_S)
        return ""

    def _ailing(self, _: Answers) -> str:
        places = self._chronicle.places
        troubled = [named(place) for place in places if self._chronicle.is_troubled(place)]
        return f"not well: {', '.join(troubled)}" if troubled else ""

    def _restless(self, answers: Answers) -> str:
        if ailing := self._ailing(answers):
            return ailing
        for name, answer in answers.items():
            waiting = answer["tables"]["waiting_operations"]
            if waiting:
                return f"{name} still waits for the echoes of {waiting} operations"
            if retired := answer["tables"]["retired_advertisements"]:
                return f"{name} still waits until all has arrived under {retired} advertisements"
            if any(link["unacknowledged"] for link in answer["links"].values()):
                return f"{name} still waits for acknowledgements"
            living, sessions = self._traffic.living_at(name), answer["session_count"]
            if sessions != living:
                return f"{name} has {sessions} sessions, but {living} clients live there"
        if len(answers) < len(self._brokers):
            return "not every broker answers"
        return "" if self._traffic.at_rest else "some clients still wait for something"
