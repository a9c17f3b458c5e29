"""The soft half of hosting: which copies run here, their checkpoints, and the halt before a move.

    absent ── RunHosted, HostedHello ──▶ running ── HaltHosted, HostedHalted ──▶ absent

A copy counts as running from its welcome until the container says that it has stopped, whatever
becomes of its connection. A move is not decided while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from msgspec.structs import replace

from motet.errors import ClientElsewhere, Disconnected, MisuseError, ProtocolError, VersionError
from motet.protocol.changes import Grouped, SessionArrived
from motet.protocol.contract import Close, Output, SetTimer, TimerKey
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.hosted.durable import DurableHosted
from motet.protocol.hosted.facts import CheckpointMade, HostingBegun
from motet.protocol.hosted.messages import (
    MAX_OUTPUTS,
    MAX_OUTPUTS_BYTES,
    MAX_STATE_BYTES,
    CheckpointKept,
    ContainerHello,
    HaltHosted,
    HostedCheckpoint,
    HostedHalted,
    HostedHello,
    HostedState,
    Registered,
    RunHosted,
)
from motet.protocol.hosted.state import HostedClient
from motet.protocol.mobility.messages import MoveOffer
from motet.protocol.mobility.soft import SoftMobility
from motet.protocol.room import LISTED, Objection, Peer, SoftRoom
from motet.protocol.session.messages import ClientHello, Processed
from motet.protocol.session.soft import SoftSessions
from motet.protocol.shared import SharedState

HOME: TimerKey = ("hosting", "home")
HOME_S = 2.0
"""How often the broker looks whether the clients that begin here are still known."""
UNSURE_S = 0.2
"""The same while some are not, because other brokers may still have to tell of them."""


class SoftHosted(SoftRoom):
    concerns = frozenset({SessionArrived})

    def __init__(
        self,
        shared: SharedState,
        durable: DurableHosted,
        sessions: SoftSessions,
        mobility: SoftMobility,
    ) -> None:
        self._shared = shared
        self._durable = durable
        self._sessions = sessions
        self._mobility = mobility
        self._container = 0
        """Its connection."""
        self._registered: dict[str, None] = {}
        self._homes: tuple[str, ...] = ()
        """Registered clients that begin here."""
        self._running: dict[str, None] = {}
        self._halting: dict[str, None] = {}
        """Running clients whose container was told to stop them."""
        sessions.guard = self._guard
        mobility.is_hosted = lambda client: client in durable.hosted
        mobility.halt = self._halt
        mobility.stays = self._stays
        mobility.objectors.append(self._objection)

    def frames(self) -> Mapping[type, Callable[[int, Any, Any, Output, float], None]]:
        return {
            ContainerHello: self._container_hello,
            Registered: self._register,
            HostedHalted: self._halted,
            HostedHello: self._hosted_hello,
            HostedCheckpoint: self._checkpoint,
        }

    def closings(self) -> Mapping[str, Callable[[int, Peer, Output, float], None]]:
        return {"container": self._container_left}

    def timers(self) -> Mapping[str, Callable[[Any, Output, float], None]]:
        return {"hosting": self._look_home}

    def account(self) -> dict[str, Any]:
        return {
            "hosted": {
                name: {
                    "registered": name in self._registered,
                    "running": name in self._running,
                    "checkpoints": each.number,
                    "state_bytes": len(each.state or b""),
                    "outputs": len(each.outputs),
                }
                for name, each in islice(sorted(self._durable.hosted.items()), LISTED)
            }
        }

    def validate(self) -> None:
        assert self._halting.keys() <= self._running.keys()

    # ── the container ────────────────────────────────────────────────────────────────────

    def _container_hello(
        self, connection: int, peer: None, hello: ContainerHello, out: Output, now: float
    ) -> None:
        del peer
        _check_version(hello.version)
        former = self._container
        if former:
            out.close.append(Close(former, "Fenced", "a newer container has connected"))
            self._container_left(former, self._shared.peers[former], out, now)
            self._shared.unbind(former)
        self._container = connection
        self._shared.peers[connection] = Peer("container", "")

    def _register(
        self, connection: int, peer: Peer, frame: Registered, out: Output, now: float
    ) -> None:
        del connection, peer
        before, self._registered = self._registered, dict.fromkeys(frame.clients)
        self._homes = tuple(client for client in frame.homes if client in self._registered)
        for client in self._registered:
            if client not in before and self._is_here(client):
                self._run(client, out)
        self._look_home(HOME, out, now)

    def _is_here(self, client: str) -> bool:
        """A hosted client has its session here. A crash may have come between the two facts that
        begin a session and the hosting of its client."""
        session = self._shared.durable.sessions.get(client)
        return client in self._durable.hosted or (session is not None and session.durable)

    def _look_home(self, key: TimerKey, out: Output, now: float) -> None:
        """Begin clients that are known nowhere. They may become so at any time: if the broker that
        has their session loses it."""
        if not self._homes:
            return
        state = self._shared.durable.routing.state
        missing = [client for client in self._homes if state.clients.newest(client) is None]
        if missing and not state.unsure:
            for client in missing:
                self._run(client, out)
        out.timers.append(SetTimer(key, now + (UNSURE_S if missing else HOME_S)))

    def _run(self, client: str, out: Output) -> None:
        """Have a client run whose session is here, unless it runs, or is about to move."""
        ready = client in self._registered and client not in self._running
        if ready and not self._mobility.is_frozen(client):
            out.deliver.append((self._container, RunHosted(client)))

    def _halted(
        self, connection: int, peer: Peer, frame: HostedHalted, out: Output, now: float
    ) -> None:
        del connection, peer, now
        self._running.pop(frame.client, None)
        self._halting.pop(frame.client, None)
        self._stays(frame.client, out)

    def _container_left(self, connection: int, peer: Peer, out: Output, now: float) -> None:
        """Its clients cannot be stopped any more, except by their connections."""
        del peer, now
        if connection != self._container:
            return
        self._container, self._homes = 0, ()
        self._registered.clear()
        for client in self._running:
            soft = self._shared.clients.get(client)
            if soft is not None and soft.connection:
                out.close.append(Close(soft.connection, "Disconnected", "the container is gone"))
        self._running.clear()
        self._halting.clear()

    # ── hosted clients ───────────────────────────────────────────────────────────────────

    def _hosted_hello(
        self, connection: int, peer: None, frame: HostedHello, out: Output, now: float
    ) -> None:
        del peer
        _check_version(frame.version)
        hello = frame.hello
        if not self._sessions.lets_in(connection, hello, out, now):
            return
        client = hello.client
        objection = self._refusal(client)
        if objection is not None:
            self._shared.expel(connection, objection.exception(), out, now)
            return
        if not hello.keep_s or hello.resume is not None:
            raise ProtocolError(f"{client!r} is hosted: it adopts a durable session, or opens one")
        known = self._durable.hosted.get(client)
        if known is not None:
            hello = replace(hello, published=known.last)
            out.deliver.append((connection, _told(known)))
        self._sessions.greet(connection, hello, out, now, hosted=True)
        soft = self._shared.clients.get(client)
        if soft is None or soft.connection != connection:
            return  # it was refused
        if self._durable.current(client, soft.epoch) is None:
            self._shared.journal(HostingBegun(client, soft.epoch, soft.published), out, now)
        self._running[client] = None

    def _refusal(self, client: str) -> Objection | None:
        """Why a hosted client cannot run here now. One that is known nowhere begins at its home,
        when all brokers that may know it have been heard."""
        if not self._container:  # it has left while the copy was on its way here
            return Objection(Disconnected.__name__, "the container is gone")
        if client not in self._registered:
            text = f"{self._shared.name} has no code for {client!r}"
            return Objection(MisuseError.__name__, text)
        if client in self._halting or self._mobility.is_frozen(client):
            return Objection(ClientElsewhere.__name__, f"{client!r} is about to move")
        if client in self._running:
            return Objection(MisuseError.__name__, f"a copy of {client!r} runs already")
        if client in self._durable.hosted:
            return None
        state = self._shared.durable.routing.state
        newest = state.clients.newest(client)
        if newest is not None and self._shared.durable.sessions.current(client, newest) is None:
            text = f"{client!r} is at {state.clients.home(client)}, or on its way there"
            return Objection(ClientElsewhere.__name__, text)
        if state.unsure:
            text = f"{self._shared.name} does not know yet whether {client!r} runs elsewhere"
            return Objection(Disconnected.__name__, text)
        return None

    def _checkpoint(
        self, connection: int, peer: Peer, frame: HostedCheckpoint, out: Output, now: float
    ) -> None:
        client = peer.name
        soft = self._shared.clients[client]
        known = self._durable.current(client, soft.epoch)
        if known is None:
            problem = MisuseError(f"{client!r} is not hosted, so it makes no checkpoints")
            self._shared.expel(connection, problem, out, now)
            return
        _check(known, frame)
        self._shared.journal(CheckpointMade(client, soft.epoch, frame), out, now)
        for pubend, upto in frame.cursors.items():
            self._shared.receive(connection, Processed(pubend, upto), out, now)
        out.deliver.append((connection, CheckpointKept(frame.number)))

    def _guard(self, hello: ClientHello) -> Objection | None:
        """A process elsewhere must not take over a client that runs here."""
        name = hello.client
        if name not in self._registered and name not in self._running:
            return None
        text = f"{name!r} is hosted by {self._shared.name}; use another client id"
        return Objection(MisuseError.__name__, text)

    # ── moves ────────────────────────────────────────────────────────────────────────────

    def changed(self, changes: Grouped, out: Output, now: float) -> None:
        del now
        for arrived in changes.get(SessionArrived, ()):
            if self._is_here(arrived.client):
                self._run(arrived.client, out)

    def _halt(self, client: str, out: Output) -> str:
        """Stop the copy of a client that is about to leave; what the move must wait for."""
        if client not in self._running:
            return ""
        if client not in self._halting:
            self._halting[client] = None
            out.deliver.append((self._container, HaltHosted(client)))
        return "its hosted copy to stop"

    def _stays(self, client: str, out: Output) -> None:
        """A move was refused: the client runs again."""
        if self._is_here(client):
            self._run(client, out)

    def _objection(self, offer: MoveOffer) -> Objection | None:
        if not offer.hosted or offer.client in self._registered:
            return None
        here = self._shared.name
        text = f"no class is registered for {offer.client!r} at {here}"
        if not self._container:
            text += f": {here} runs no container"
        return Objection("MoveRefused", text)


def _told(known: HostedClient) -> HostedState:
    return HostedState(known.number, known.state, known.cursors, known.outputs, known.last)


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise VersionError(f"the container speaks version {version}, not {PROTOCOL_VERSION}")


def _check(known: HostedClient, frame: HostedCheckpoint) -> None:
    if frame.number != known.number + 1:
        raise ProtocolError(f"checkpoint {frame.number} follows {known.number}")
    if len(frame.state or b"") > MAX_STATE_BYTES:
        raise ProtocolError(f"a state has at most {MAX_STATE_BYTES} bytes")
    if any(upto < 0 for upto in frame.cursors.values()):
        raise ProtocolError("a cursor is a tick")
    waiting = sum(map(len, frame.outputs)) + known.outputs_bytes
    if waiting > 2 * MAX_OUTPUTS_BYTES or len(frame.outputs) > MAX_OUTPUTS:
        raise ProtocolError(f"{waiting} bytes of publications wait; at most {MAX_OUTPUTS_BYTES}")
