"""One connection as a driver sees it: who is there, and is it still alive?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from motet.errors import Disconnected, MotetError, ProtocolError, SlowConsumer
from motet.protocol.cell.messages import MemberHello
from motet.protocol.link.messages import LinkHello
from motet.protocol.session.messages import ClientHello, Goodnight
from motet.runtime.outbox import Outbox
from motet.runtime.traffic import Traffic
from motet.runtime.transport import Connection

log = logging.getLogger("motet.broker")

ORDERLY = ("", "Disconnected")
"""Last words of a broker that just stops, or goes on by another connection."""


class Reader(Protocol):
    """Who takes what a contact hears."""

    def read(self, contact: Contact, bodies: Sequence[bytes]) -> None: ...

    def closed(self, contact: Contact) -> None: ...


class Contact:
    """The handler of one connection. Numbers count up, so the newer of two is the larger."""

    def __init__(
        self,
        reader: Reader,
        number: int,
        connection: Connection,
        now: float,
        *,
        dialled: str | None,
        bound_bytes: int,
        traffic: Traffic,
    ) -> None:
        self.number = number
        self.connection = connection
        self.outbox = Outbox(connection, bound_bytes, traffic)
        self.gone = asyncio.Event()
        self.greeted = False
        self.since = now
        """Since when we wait for a hello."""
        self.dialled = dialled
        """The neighbour that we have called, if it was us who called."""
        self._reader = reader
        self._kind = "broker" if dialled is not None else "unknown"
        self._name = dialled or ""
        self._received_bytes = 0
        self._heard_at = now
        self._frames_out = 0
        self._spoke_at = now

    def __str__(self) -> str:
        return f"connection {self.number} ({self._kind} {self._name or self.connection.peer})"

    @property
    def of_broker(self) -> bool:
        return self._kind == "broker"

    # ── from the transport ───────────────────────────────────────────────────────────────

    def frames(self, bodies: Sequence[bytes]) -> None:
        self._reader.read(self, bodies)

    def closed(self, reason: str) -> None:
        log.debug("%s is gone: %s", self, reason)
        self._reader.closed(self)
        self.gone.set()

    def writable(self) -> None:
        if self._kind == "client":
            self.outbox.confess()

    # ── what was said ────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> str:
        """Who is there, as far as it has said."""
        return self._name

    def hear_hello(self, hello: ClientHello | LinkHello | MemberHello) -> None:
        self.greeted = True
        if isinstance(hello, ClientHello):
            self._kind, self._name = "client", hello.client
        elif isinstance(hello, MemberHello):
            self._kind, self._name = "broker", hello.member
        else:
            self._kind, self._name = "broker", hello.broker

    def hear_reader(self) -> None:
        """It wants to read a log, and needs no hello for that."""
        if not self.greeted:
            self.greeted = True
            self._kind = "reader"

    def hear_goodnight(self, goodnight: Goodnight) -> None:
        """A broker does not want us; whoever runs this one should know why."""
        level = logging.INFO if goodnight.error in ORDERLY else logging.WARNING
        log.log(level, "%s closes: %s: %s", self, goodnight.error, goodnight.text)
        self.connection.close(f"{goodnight.error}: {goodnight.text}")

    # ── the pulse ────────────────────────────────────────────────────────────────────────

    def problem(self, now: float, hello_s: float, silence_s: float) -> MotetError | None:
        """Why this connection cannot go on, if so. Any byte counts as life."""
        if self.outbox.ended:
            return None
        received_bytes = self.connection.received_bytes
        if received_bytes != self._received_bytes:
            self._received_bytes = received_bytes
            self._heard_at = now
        if not self.greeted and now - self.since > hello_s:
            return ProtocolError(f"no hello within {hello_s:g} s")
        if now - self._heard_at > silence_s:
            return Disconnected(f"nothing was heard for {silence_s:g} s")
        if self._kind != "broker" and self.outbox.drowning:
            return SlowConsumer(
                f"{self.connection.backlog_bytes} bytes wait for a client that does not read"
            )
        return None

    def idle(self, now: float, heartbeat_s: float) -> bool:
        """Whether the other side has waited long enough for a sign of us."""
        if self.outbox.frames_out != self._frames_out:
            self._frames_out = self.outbox.frames_out
            self._spoke_at = now
        return not self.outbox.ended and now - self._spoke_at >= heartbeat_s

    def describe(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "kind": self._kind,
            "name": self._name,
            "peer": self.connection.peer,
            "dialled": self.dialled is not None,
            "greeted": self.greeted,
            "backlog_bytes": self.connection.backlog_bytes,
            "slow": self.connection.congested,
            "dropped_events": self.outbox.dropped,
            "frames_out": self.outbox.frames_out,
            "bytes_in": self.connection.received_bytes,
        }
