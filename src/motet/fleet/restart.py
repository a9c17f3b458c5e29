"""A rolling restart that clients do not notice: each broker is drained before it is restarted.

Clients go to brokers that are restarted already, if these take them. So the clients of the first
broker move twice, and all others once. Who cannot move stays, and reconnects to its session when
the broker is back, as in a restart without draining.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct, field

from motet.client.orders import order_drain
from motet.errors import MotetError, NotOffered
from motet.fleet.balance import Balance, BalanceReport
from motet.fleet.convoy import Survey, survey
from motet.fleet.drain import Drain, DrainReport


class BrokerRestart(Struct):
    broker: str
    drain: DrainReport | None = None
    """None: it was not drained."""
    problem: str = ""
    """Why it was not drained, or not to the end."""
    restarted: bool = False
    still_draining: bool = False
    """It was draining before, or could not be told that it need not drain any more."""
    seconds: float = 0.0

    @property
    def moved(self) -> dict[str, str]:
        return {} if self.drain is None else self.drain.moved

    @property
    def stay(self) -> dict[str, str]:
        return {} if self.drain is None else self.drain.stay


class RestartReport(Struct):
    brokers: list[BrokerRestart] = field(default_factory=list)
    """In the order of their restarts. The last one may have been interrupted."""
    waiting: list[str] = field(default_factory=list)
    """Those whose turn has not come."""
    balance: BalanceReport | None = None
    interrupted: bool = False
    refused: str = ""
    """Why the last one was not restarted."""

    @property
    def restarted(self) -> list[str]:
        return [each.broker for each in self.brokers if each.restarted]


Restart = Callable[[str], Awaitable[None]]
"""Returns when this broker is restarted and all links are up."""
Progress = Callable[[RestartReport, str], None]
"""Called whenever the report has changed, with what happens now."""


class DrainingRestart:
    def __init__(
        self,
        addresses: Mapping[str, str],
        restart: Restart,
        timeout_s: float = 60.0,
        progress: Progress = lambda *_: None,
        *,
        volatile: bool = False,
        even_out: bool = False,
    ) -> None:
        """Each drain takes at most `timeout_s`. Volatile brokers lose at a restart what they have:
        such a broker is restarted only if it is empty, with a log that is owed to nobody."""
        self._addresses = dict(addresses)
        self._restart = restart
        self._timeout_s = timeout_s
        self._progress = progress
        self._volatile = volatile
        self._even_out = even_out
        self._part: Drain | Balance | None = None
        self.report = RestartReport(waiting=list(addresses))

    def stop(self) -> None:
        """Begin no further restart. `run` returns when the moves under way are decided, or the
        broker that is being restarted is back."""
        self.report.interrupted = True
        if self._part is not None:
            self._part.stop()

    async def run(self) -> RestartReport:
        """Raises an error if no broker can be drained. Nothing has changed then. If a restart
        fails, its error is raised, and the broker takes in clients again if it can be told so."""
        report = self.report
        _check(await survey(self._addresses))
        while report.waiting and not report.interrupted and not report.refused:
            one = BrokerRestart(report.waiting.pop(0))
            report.brokers.append(one)
            began = time.monotonic()
            await self._renew(one)
            one.seconds = time.monotonic() - began
        if self._even_out and not report.interrupted and not report.refused:
            await self._balance()
        return report

    async def _renew(self, one: BrokerRestart) -> None:
        report, name = self.report, one.broker
        found = await survey(self._addresses)
        one.still_draining = found.is_draining(name)
        one.problem = _objection(found, name)
        drains = name in found.states and not one.problem
        try:
            if drains:
                await self._empty(one)
            if report.interrupted:
                return
            if self._volatile and (one.drain is None or not one.drain.is_empty):
                why = one.problem or f"it is not empty after {self._timeout_s:g} s"
                report.refused = f"{why}; a volatile broker loses what it has"
                return
            self._progress(report, f"restarting {name}")
            await self._restart(name)
            one.restarted = True
        finally:
            if drains and not one.still_draining:
                await self._undo(one)

    async def _empty(self, one: BrokerRestart) -> None:
        report, name = self.report, one.broker

        def show(part: DrainReport, text: str) -> None:
            self._progress(report, f"{name}: {text}, {len(part.moved):,} moved, {part.left:,} left")

        drain = Drain(
            self._addresses,
            name,
            timeout_s=self._timeout_s,
            progress=show,
            prefer=report.restarted,
            await_log=self._volatile,
        )
        self._part, one.drain = drain, drain.report
        try:
            await drain.run()
        except MotetError as problem:
            one.problem = str(problem)
            if not drain.report.begun:
                one.drain = None
        finally:
            self._part = None

    async def _undo(self, one: BrokerRestart) -> None:
        try:
            await order_drain(self._addresses[one.broker], False)
        except NotOffered:
            pass  # it cannot drain, so it does not
        except MotetError as problem:
            one.still_draining = True
            one.problem = one.problem or str(problem)

    async def _balance(self) -> None:
        report = self.report

        def show(part: BalanceReport, text: str) -> None:
            self._progress(report, f"evening out: {text}, {len(part.moved):,} moved")

        self._part = Balance(self._addresses, self._timeout_s, show)
        report.balance = await self._part.run()
        self._part = None


# ── who can be drained ───────────────────────────────────────────────────────────────────


def _check(found: Survey) -> None:
    """Raise an error unless some broker can be drained."""
    objections = {name: _objection(found, name) for name in found.states}
    if objections and all(objections.values()):
        text = "; ".join(f"{name}: {why}" for name, why in objections.items())
        raise NotOffered(f"no broker can be drained: {text}")


def _objection(found: Survey, name: str) -> str:
    """Why the clients of a broker cannot move; empty for processes without clients of their own."""
    if name in found.silent:
        return str(found.silent[name])
    if name not in found.states:
        return ""
    state = found.states[name]
    if state["covering"]:
        return "covering is on, so its clients cannot move"
    if state["cell"] is not None:
        return "it is a cell of several processes, whose clients cannot move"
    if len(found.distances.brokers) < 2:
        return "it is the only broker, so its clients can move nowhere"
    return ""
