"""Commits of sinks whose staged files are being checked. Soft code.

Files are checked outside the core, which takes time. Later requests of the same client wait
meanwhile, because its requests take effect in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from motet.errors import ProtocolError
from motet.model import Hop
from motet.model.ids import LAST_TICK
from motet.protocol.contract import CheckStaged, Output, StagingChecked
from motet.protocol.delivery.soft import Streams
from motet.protocol.room import LISTED, Objection, SoftRoom
from motet.protocol.session.messages import CommitRequest, Request
from motet.protocol.session.soft import SoftSessions
from motet.protocol.session.state import Session
from motet.protocol.shared import SharedState
from motet.protocol.sinks.messages import MAX_STAGING_CHARS

SINK = "sink"
"""The name of a sink's advertisement; a sink has no other operation."""
MOST_HELD = 1024
"""No client has more outstanding requests."""


class Check(NamedTuple):
    """A commit whose files are being checked, by ticket, with the requests that wait behind it. Of
    one process of its client, because the next process numbers its requests from scratch."""

    ticket: int
    instance: str
    held: list[Request]


class SoftSinks(SoftRoom):
    def __init__(
        self, shared: SharedState, streams: Streams, sessions: SoftSessions, in_cell: bool
    ) -> None:
        self._shared = shared
        self._streams = streams
        self._sessions = sessions
        self._in_cell = in_cell
        self._checks: dict[tuple[str, str], Check] = {}
        """By client and epoch."""
        sessions.holders.append((CommitRequest, self._checks, self.holds))
        sessions.objectors[CommitRequest] = self.objection
        self._tickets = 0

    def inputs(self) -> Mapping[type, Callable[[Any, Output, float], None]]:
        return {StagingChecked: self.checked}

    def account(self) -> dict[str, Any]:
        """The query, last epoch and unfinished copies of each sink."""
        state = self._shared.durable.sinks.state
        return {
            "sinks": {
                name: {
                    "query": sink.query,
                    "epoch": sink.epoch if sink.query else None,
                    "keys": len(sink.keys),
                    "copying": [b.tx for b in state.blocks.values() if b.client == name],
                }
                for name, sink in sorted(islice(state.sinks.items(), LISTED))
            }
        }

    def holds(self, session: Session, request: Request, out: Output) -> bool:
        """Hold a request that waits for a check, or needs one. Returns whether it is held."""
        key = (session.client, session.epoch)
        check = self._checks.get(key)
        if check is not None and check.instance == session.instance:
            if request.sequence == check.held[-1].sequence + 1:
                if len(check.held) > MOST_HELD:
                    raise ProtocolError(f"more than {MOST_HELD} requests behind a commit")
                check.held.append(request)
            return True
        if not isinstance(request, CommitRequest) or self.objection(session, request):
            return False
        sinks = self._shared.durable.sinks
        if not self._shared.durable.sessions.is_new(session, request):
            return False
        if sinks.is_committed(session.client, request) or sinks.objection(session.client, request):
            return False  # no need to check files
        self._tickets += 1
        self._checks[key] = Check(self._tickets, session.instance, [request])
        out.staged.append(CheckStaged(self._tickets, session.client, request))
        return True

    def objection(self, session: Session, request: CommitRequest) -> Objection | None:
        """Why a commit is refused, whatever is staged."""
        name = self._shared.name
        if not self._streams.pubend or self._in_cell:
            why = "it is a cell or linked to one" if self._in_cell else "it keeps no log of its own"
            return Objection("NotOffered", f"{name} does not support sinks: {why}")
        if not session.durable:
            text = f"{session.client} is not a sink: its session is not durable"
            return Objection("MisuseError", text)
        wrong = _nonsense(request)
        if wrong:
            return Objection("MisuseError", wrong)
        own = self._shared.durable.routing.state.advertisements.from_source(
            Hop.client(session.client)
        )
        if request.advertised not in [each.filter for each in own if not each.tx]:
            text = f"{session.client} has not advertised {str(request.advertised)[:200]}"
            return Objection("NotAdvertised", text)
        return None

    def objection_to(self, name: str) -> Objection | None:
        """Why a sink may not have this name: a client has it. The first commit would fence the
        client, and the sink would get the client's events."""
        durable, hop = self._shared.durable, Hop.client(name)
        session = durable.sessions.get(name)
        advice = "use another name for the sink"
        if session is None:
            clients = durable.routing.state.clients
            home = clients.home(name)
            if home is None or home == self._shared.name:
                return None
            if (name, clients.newest(name)) in clients.durable:
                return None  # perhaps a sink whose home is there; its commit will tell
            text = f"{name!r} is a client, connected to {home}; {advice}"
            return Objection("MisuseError", text)
        if not session.durable:
            text = f"{name!r} is a client, connected to {self._shared.name}; {advice}"
            return Objection("MisuseError", text)
        others = [each for each in session.names.values() if each != SINK]
        if others or durable.routing.state.subscriptions.from_source(hop):
            text = f"{name!r} is a durable client of {self._shared.name}; {advice}"
            return Objection("MisuseError", text)
        return None

    def checked(self, news: StagingChecked, out: Output, now: float) -> None:
        """The check is finished: take the requests that waited for it."""
        known = (key for key, each in self._checks.items() if each.ticket == news.ticket)
        key = next(known, None)
        if key is None:
            return
        check = self._checks.pop(key)
        for request in check.held:
            session = self._shared.durable.sessions.current(*key)
            if session is None or session.instance != check.instance:
                return
            if request is check.held[0]:
                self._sessions.take(session, request, out, now, news.refused)
            elif not self.holds(session, request, out):
                self._sessions.take(session, request, out, now)


def _nonsense(request: CommitRequest) -> str:
    """Why a commit is malformed."""
    if not 0 < len(request.job) <= MAX_STAGING_CHARS or len(request.key) > MAX_STAGING_CHARS:
        return f"a job has 1 to {MAX_STAGING_CHARS} characters, and a key at most as many"
    if request.epoch is not None and not 0 <= request.epoch <= LAST_TICK:
        return f"an epoch is at least 0, not {request.epoch}"
    if len({(part.partition, part.name) for part in request.parts}) < len(request.parts):
        return "an attempt is named twice, so its rows would be duplicated"
    return ""
