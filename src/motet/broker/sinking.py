"""Commits of sinks, until it is known whether what they name is staged. Soft code.

Files are looked at beside the core, which takes time; what the same client asks for meanwhile
waits, because its requests take effect in the order in which they were made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from motet.broker import facts
from motet.errors import ProtocolError
from motet.model import Hop
from motet.model.epochs import broker_of
from motet.model.ticks import LAST_TICK
from motet.protocol.contract import CheckStaged, Output, StagingChecked
from motet.protocol.session.messages import CommitRequest, Request
from motet.protocol.session.state import Session
from motet.protocol.sinks.messages import MAX_STAGING_CHARS

if TYPE_CHECKING:
    from motet.broker.core import BrokerCore

NOTHING = ("", "")
SINK = "sink"
"""What sinks call their advertisement: they have one, and nothing else."""
MOST_HELD = 1024
"""No client of ours has more requests under way."""


class Check(NamedTuple):
    """A commit whose files are looked at, by a ticket, and what has come behind it; of one process
    of its client, because the next one numbers its requests anew."""

    ticket: int
    instance: str
    held: list[Request]


class Sinking:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._checks: dict[tuple[str, str], Check] = {}
        """By client and epoch."""
        self._tickets = 0

    def holds(self, session: Session, request: Request, out: Output) -> bool:
        """Whether a request has to wait."""
        key = (session.client, session.epoch)
        check = self._checks.get(key)
        if check is not None and check.instance == session.instance:
            if request.sequence == check.held[-1].sequence + 1:
                if len(check.held) > MOST_HELD:
                    raise ProtocolError(f"more than {MOST_HELD} requests behind a commit")
                check.held.append(request)
            return True
        if not isinstance(request, CommitRequest) or self._refusal(session, request)[0]:
            return False
        sinks = self._core.durable.sinks
        if not self._core.durable.sessions.is_new(session, request):
            return False
        if sinks.is_committed(session.client, request) or sinks.objection(session.client, request):
            return False  # it needs no files
        self._tickets += 1
        self._checks[key] = Check(self._tickets, session.instance, [request])
        out.staged.append(CheckStaged(self._tickets, session.client, request))
        return True

    def refusal(self, client: str, epoch: str, request: Request) -> tuple[str, str]:
        """Why a commit cannot be, whatever is staged: an error, and its text."""
        session = self._core.durable.sessions.current(client, epoch)
        if not isinstance(request, CommitRequest) or session is None:
            return NOTHING
        return self._refusal(session, request)

    def _refusal(self, session: Session, request: CommitRequest) -> tuple[str, str]:
        core = self._core
        name = core.config.name
        if not core.streams.pubend or core.membership is not None:
            return (
                "NotOffered",
                f"{name} offers no sinks: it keeps no log of its own, or is a cell",
            )
        if not session.durable:
            return ("MisuseError", f"{session.client} is no sink: its session is not durable")
        wrong = _nonsense(request)
        if wrong:
            return ("MisuseError", wrong)
        own = core.durable.routing.state.advertisements.from_source(Hop.client(session.client))
        if request.advertised not in [each.filter for each in own if not each.tx]:
            text = f"{session.client} has not advertised {str(request.advertised)[:200]}"
            return ("NotAdvertised", text)
        return NOTHING

    def objection_to(self, name: str) -> str:
        """Why nobody may write into a sink of this name: it is that of a client, which would be
        fenced off by the first commit, and whose events the sink would get."""
        durable, hop = self._core.durable, Hop.client(name)
        session = durable.sessions.get(name)
        advice = "give the sink a name of its own"
        if session is None:
            newest = durable.routing.state.clients.newest(name)
            if newest is None or broker_of(newest) == self._core.config.name:
                return ""
            if (name, newest) in durable.routing.state.clients.durable:
                return ""  # of a sink, perhaps, whose home is there: its commit will say so
            return f"{name!r} is a client, connected to {broker_of(newest)}: {advice}"
        if not session.durable:
            return f"{name!r} is a client, connected to {self._core.config.name}: {advice}"
        others = [each for each in session.names.values() if each != SINK]
        if others or durable.routing.state.subscriptions.from_source(hop):
            return f"{name!r} is a durable client of {self._core.config.name}: {advice}"
        return ""

    def checked(self, news: StagingChecked, out: Output, now: float) -> None:
        """It is known whether all is there."""
        known = (key for key, each in self._checks.items() if each.ticket == news.ticket)
        key = next(known, None)
        if key is None:
            return
        check, refused = self._checks.pop(key), news.refused
        for request in check.held:
            session = self._core.durable.sessions.current(*key)
            if session is None or session.instance != check.instance:
                return
            if request is check.held[0]:
                self.take(session, request, out, now, refused)
            elif not self.holds(session, request, out):
                self.take(session, request, out, now)

    def take(
        self,
        session: Session,
        request: Request,
        out: Output,
        now: float,
        refused: tuple[str, str] = NOTHING,
    ) -> None:
        """A request takes effect, or is refused."""
        core, client, epoch = self._core, session.client, session.epoch
        refused = refused if refused[0] else self.refusal(client, epoch, request)
        refused = refused if refused[0] else core.streams.objection(client, request)
        tick = core.streams.start_tick(now)
        fact = facts.RequestReceived(client, epoch, request, tick, refused)
        core._journal(fact, out, now)


def _nonsense(request: CommitRequest) -> str:
    """What is wrong with a commit, whoever makes it."""
    if not 0 < len(request.job) <= MAX_STAGING_CHARS or len(request.key) > MAX_STAGING_CHARS:
        return f"a job is named by 1 to {MAX_STAGING_CHARS} characters, and a key has no more"
    if request.epoch is not None and not 0 <= request.epoch <= LAST_TICK:
        return f"epochs count from 0; {request.epoch} is none"
    if len({(part.partition, part.name) for part in request.parts}) < len(request.parts):
        return "an attempt is named twice, and its rows would be there twice"
    return ""
