"""State that all soft rooms of one broker share: connections, links, clients, the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from motet.errors import MotetError
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Close, Output
from motet.protocol.frames import Frame
from motet.protocol.link.machine import Link
from motet.protocol.room import Journal, Peer
from motet.protocol.session.messages import Refusal

if TYPE_CHECKING:
    from motet.protocol.delivery.durable import DurableDelivery
    from motet.protocol.link.machine import Ledger
    from motet.protocol.routing.machine import Routing
    from motet.protocol.session.durable import DurableSessions
    from motet.protocol.session.machine import Sessions
    from motet.protocol.sinks.durable import Sinks
    from motet.protocol.transactions.machine import Transactions


class DurableState(Protocol):
    """The durable state that soft rooms read; they change it through facts only."""

    routing: Routing
    sessions: Sessions
    transactions: Transactions
    sinks: Sinks
    requests: DurableSessions
    delivery: DurableDelivery

    @property
    def ledgers(self) -> dict[str, Ledger]: ...


class ClientSoft(Struct):
    """A client's current connection. `published` is the last publication received, `settled` the
    last one answered; those in between are on their way into the log."""

    epoch: str
    connection: int = 0
    published: int = 0
    settled: int = 0
    forgot: bool = False
    """After a restart: it is unknown which best-effort publications were received before it."""
    warned: bool = False
    """The client has published since it was told that, or has asked for a move: it does not send
    those again."""
    lost: int = 0
    refused: tuple[Refusal, ...] = ()
    """Refused publications, kept in case the answer is lost with the connection."""
    forgotten: int = 0
    """Refusals up to this publication have been forgotten."""
    credentials: bytes = b""
    """Those with which it has connected since this broker was started."""
    resent: int = 0
    """Publications up to this one that still arrive are sent again: the log lost them in a restart.
    They may lie outside of advertisements that are in force now."""


class Counts(Struct):
    steps: int = 0
    published: int = 0
    received: int = 0
    expelled: dict[str, int] = field(default_factory=dict)


def _unheard(connection: int, frame: Frame, out: Output, now: float) -> None: ...


class SharedState:
    def __init__(
        self,
        config: BrokerConfig,
        durable: DurableState,
        journal: Journal,
        closed: Callable[[int, Output, float], None],
    ) -> None:
        self.durable = durable
        self.config = replace(config, neighbours=tuple(durable.ledgers))
        root = durable.transactions.root
        self.links = {
            name: Link(config.name, ledger, root) for name, ledger in durable.ledgers.items()
        }
        self.clients = {
            session.client: ClientSoft(session.epoch, forgot=True) for session in durable.sessions
        }
        self.peers: dict[int, Peer] = {}
        """The peer at the other end of each connection, once its hello has arrived."""
        self.detained: dict[int, Callable[[Frame], bool]] = {}
        """By connection: whether a frame is kept for later, because its client moves."""
        self.receive: Callable[[int, Frame, Output, float], None] = _unheard
        """Takes a frame that was kept."""
        self.address = ""
        """Where this broker listens, once it does."""
        self.counts = Counts()
        self.journal = journal
        self._closed = closed

    @property
    def name(self) -> str:
        return self.config.name

    def expel(self, connection: int, error: MotetError, out: Output, now: float) -> None:
        """Close the connection of a peer that misbehaved; the step's other outputs remain."""
        name = type(error).__name__
        self.counts.expelled[name] = self.counts.expelled.get(name, 0) + 1
        out.close.append(Close(connection, name, str(error)))
        self._closed(connection, out, now)

    def unbind(self, connection: int) -> None:
        peer = self.peers.pop(connection, None)
        self.detained.pop(connection, None)
        if peer is not None and peer.kind == "client":
            self.clients[peer.name].connection = 0
