"""Which clients a broker takes in: those that open a session here, and those that move here.

Nobody who has a session here is turned away, except by the operator's own rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from motet.model.limits import MAX_CREDENTIALS_BYTES
from motet.protocol.config import BrokerConfig
from motet.protocol.room import Objection

Authorise = Callable[[str, bytes], str]
"""Given a client's id and its credentials: why it may not use this broker; empty: it may."""

RESERVED_S = 10.0
"""How long a place is kept for a client that was promised one and has not arrived."""


class Admission:
    """Soft: nothing of it outlives the process of the broker."""

    def __init__(self, config: BrokerConfig, clients: Collection[str]) -> None:
        self.draining = ""
        """Why the operator wants no further sessions here; empty: they are welcome."""
        self.authorise: Authorise | None = None
        self._broker = config.name
        self._most_clients = config.most_clients
        self._clients = clients
        self._reserved: dict[str, float] = {}
        """By client that was promised a place: until when it is kept."""

    def to_connection(self, client: str, credentials: bytes) -> Objection | None:
        """Why a client may not use this broker, whether it has a session here or not."""
        if len(credentials) > MAX_CREDENTIALS_BYTES:
            text = f"credentials have at most {MAX_CREDENTIALS_BYTES} bytes"
            return Objection("MisuseError", f"{text}, not {len(credentials)}")
        if self.authorise is None:
            if not credentials:
                return None
            return Objection(
                "NotOffered",
                f"{self._broker} checks no credentials, so they would not protect the client; "
                "omit `credentials`, or set `authorise` in the overlay's topology file",
            )
        why = self.authorise(client, credentials)
        return Objection("NotAuthorised", f"{self._broker}: {why}") if why else None

    def to_session(self, client: str, now: float) -> Objection | None:
        """Why a client may open no session here."""
        why = self._without_room(client, now)
        return Objection("NotAdmitted", f"{why}; connect to another broker") if why else None

    def to_arrival(self, client: str, credentials: bytes, now: float) -> Objection | None:
        """Why a client may not move here. If it may, a place is kept for it."""
        objection = self.to_connection(client, credentials)
        if objection is not None:
            return Objection("MoveRefused", objection.text)
        why = self._without_room(client, now)
        if why:
            return Objection("MoveRefused", f"{why}; move to another broker")
        self._reserved[client] = now + RESERVED_S
        return None

    def _without_room(self, client: str, now: float) -> str:
        if self.draining:
            return f"{self._broker} opens no new sessions: {self.draining}"
        if self._is_full(client, now):
            most = f"{self._most_clients} clients, the most that it takes"
            return f"{self._broker} has {most} (`most_clients` in the topology file)"
        return ""

    def _is_full(self, client: str, now: float) -> bool:
        if not self._most_clients or client in self._clients:
            return False
        for each, until in list(self._reserved.items()):
            if until < now or each in self._clients:
                del self._reserved[each]
        others = len(self._reserved) - (client in self._reserved)
        return len(self._clients) + others >= self._most_clients

    def account(self) -> dict[str, Any]:
        return {"draining": self.draining, "most_clients": self._most_clients}
