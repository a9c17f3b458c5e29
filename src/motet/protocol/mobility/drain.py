"""Draining: a broker that an operator empties takes in no sessions.

    serving ── DrainOrder(True) ──▶ draining ── DrainOrder(False) ──▶ serving

Who has a session here goes on: it may come back to it, publish, and be moved away. Who would get a
new one, or would arrive with one, is refused. Logs are read as before.

The order to drain, given again, asks for the acknowledgements that the log lacks.

The state is durable, so a broker that restarts while it is drained is not filled again meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nsmallest
from typing import Any

from motet.protocol.contract import Output
from motet.protocol.delivery.soft import Streams
from motet.protocol.mobility.facts import DrainingSet
from motet.protocol.mobility.messages import (
    OPERATING,
    DrainOrder,
    DrainOrdered,
    SessionAccount,
    SessionsListed,
    SessionsRequest,
)
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.room import LISTED, DurableRoom, Handler, Peer, SoftRoom
from motet.protocol.session.soft import SoftSessions
from motet.protocol.shared import SharedState

DRAINING = b"draining"
BEING_EMPTIED = "its operator drains it"


class DurableDraining(DurableRoom):
    name = "draining"

    def __init__(self) -> None:
        self.draining = False

    def facts(self) -> Mapping[type, Handler]:
        return {DrainingSet: self._set}

    def _set(self, fact: DrainingSet) -> None:
        self.draining = fact.draining

    def image(self) -> bytes:
        return DRAINING if self.draining else b""

    def restore(self, image: bytes) -> None:
        self.draining = image == DRAINING


class SoftDraining(SoftRoom):
    def __init__(
        self,
        shared: SharedState,
        durable: DurableDraining,
        streams: Streams,
        sessions: SoftSessions,
        mobility: SoftMobility,
    ) -> None:
        self._shared = shared
        self._durable = durable
        self._streams = streams
        self._mobility = mobility
        self._admission = sessions.admission
        self._keep_away()

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {DrainOrder: self._drain, SessionsRequest: self._list_sessions}

    def account(self) -> dict[str, Any]:
        """`log_owed`: whether some event of our log is not acknowledged by everybody, and where:
        the next brokers towards those subscribers; this broker, if they are its own clients."""
        owed, behind = False, list[str]()
        if self._streams.begun:
            owed, behind = self._streams.machine.owed(self._streams.pubend)
        names = [each or self._shared.name for each in behind[:LISTED]]
        return {"draining": self._durable.draining, "log_owed": {"owed": owed, "towards": names}}

    # ── orders ───────────────────────────────────────────────────────────────────────────

    def _drain(
        self, connection: int, peer: Peer | None, order: DrainOrder, out: Output, now: float
    ) -> None:
        del peer
        self._shared.peers[connection] = Peer(*OPERATING)
        problem = self._mobility.unable() if order.draining else None
        if problem is not None:
            out.deliver.append((connection, DrainOrdered(False, *problem)))
            return
        changed = order.draining != self._durable.draining
        if changed:
            self._shared.journal(DrainingSet(order.draining), out, now)
            self._keep_away()
        elif order.draining and self._streams.begun:
            streams = self._streams
            streams.run(out, now, streams.machine.expect, streams.pubend)
        out.deliver.append((connection, DrainOrdered(changed)))

    def _keep_away(self) -> None:
        self._admission.draining = BEING_EMPTIED if self._durable.draining else ""

    def _list_sessions(
        self, connection: int, peer: Peer | None, asked: SessionsRequest, out: Output, now: float
    ) -> None:
        del peer, now
        self._shared.peers[connection] = Peer(*OPERATING)
        clients = self._shared.clients
        names = nsmallest(LISTED + 1, (name for name in clients if name > asked.after))
        listed = tuple(map(self._account_of, names[:LISTED]))
        out.deliver.append((connection, SessionsListed(listed, len(names) > LISTED)))

    def _account_of(self, client: str) -> SessionAccount:
        soft = self._shared.clients[client]
        durable = (client, soft.epoch) in self._shared.durable.routing.state.clients.durable
        problem = self._mobility.bound_here(client)
        text = "" if problem is None else problem.text
        return SessionAccount(client, bool(soft.connection), durable, text)
