"""Who keeps an operation from being effective? Asked only when someone's patience ends.

The question follows the waiting brokers outwards, every broker reports whom it waits for, and
the reports travel back. Whoever is waited for and never reports is not reached. All soft.
"""

from __future__ import annotations

from motet.broker.config import BrokerConfig
from motet.model import OpId
from motet.protocol.contract import Output, SetTimer
from motet.protocol.link.machine import Link
from motet.protocol.link.messages import Inquire, Waiting
from motet.protocol.routing.state import RoutingState

REMEMBERED = 4096
"""Questions passed on whose answers we can still send back."""


class Inquiries:
    def __init__(self, config: BrokerConfig, state: RoutingState, links: dict[str, Link]) -> None:
        self._config = config
        self._state = state
        self._links = links
        self._own: dict[OpId, dict[str, tuple[str, ...]]] = {}
        self._asked_by: dict[OpId, str] = {}

    def begin(self, op: OpId, out: Output, now: float) -> None:
        """A deadline passed: ask, and set the time of the verdict."""
        if op not in self._state.waits:
            return
        self._own[op] = {self._config.name: self._ask(op, out)}
        out.timers.append(SetTimer(("verdict", *op), now + self._config.inquiry_s))

    def asked(self, op: OpId, neighbour: str, out: Output) -> None:
        state = self._state
        if op in state.waits:
            waiting = self._ask(op, out)
        elif op in state.advertisements or op in state.subscriptions:
            waiting = ()
        else:
            return
        if waiting:
            self._asked_by[op] = neighbour
            if len(self._asked_by) > REMEMBERED:
                del self._asked_by[next(iter(self._asked_by))]
        self._report(Waiting(op, self._config.name, waiting), neighbour, out)

    def answered(self, answer: Waiting, out: Output) -> None:
        if answer.op in self._own:
            self._own[answer.op][answer.broker] = answer.neighbours
        elif answer.op in self._asked_by:
            self._report(answer, self._asked_by[answer.op], out)

    def verdict(self, op: OpId) -> tuple[str, ...]:
        """The brokers not reached; if all have reported, those that are merely slow."""
        reports = self._own.pop(op, {})
        waited_for = {name for names in reports.values() for name in names}
        return tuple(sorted(waited_for - set(reports) or waited_for))

    def _ask(self, op: OpId, out: Output) -> tuple[str, ...]:
        """Pass the question on; the names of those we wait for."""
        names = tuple(self._state.bits.names(self._state.missing(self._state.waits[op])))
        for name in names:
            link = self._links[name]
            if link.up:
                out.send.append((link.soft.connection, Inquire(op)))
        return names

    def _report(self, answer: Waiting, neighbour: str, out: Output) -> None:
        link = self._links.get(neighbour)
        if link is not None and link.up:
            out.send.append((link.soft.connection, answer))
