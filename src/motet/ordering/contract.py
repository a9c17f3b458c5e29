"""Inputs and effects of an `OrderingMachine`.

    step(input, now) -> Effects

Inputs are facts of the past, effects are imperatives. Streams and tickets are numbers that the
caller chooses; the tickets of service calls are the machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from motet.errors import MotetError
from motet.ordering.events import News, OrderedEvent, OrderReceipt
from motet.protocol.sequencing.messages import SequencingFrame

ENTRY = ""
"""The name of the connection to the first address until its site has said its name."""


# ── inputs ───────────────────────────────────────────────────────────────────────────────


class SiteConnected(NamedTuple):
    """A connection to a site is up. `ENTRY`: to a site whose name is not known; it is renamed by
    the `OrderWelcome` that comes through it."""

    site: str


class SiteFrame(NamedTuple):
    site: str
    frame: SequencingFrame


class SiteClosed(NamedTuple):
    """`refusal`: why the site has closed the connection, if what we sent was the reason."""

    site: str
    refusal: str = ""


class Notified(NamedTuple):
    """The service has delivered a message of a topic. `header`: its timestamp, if that travels
    outside of the body."""

    topic: str
    body: bytes
    header: str = ""


class ServiceDone(NamedTuple):
    """A service call has returned; `error` is empty if it succeeded."""

    ticket: int
    error: str = ""


class ServiceInterrupted(NamedTuple):
    """The service was unreachable for a while: it may have lost messages."""


class Tick(NamedTuple):
    """Time has passed, see `ClientEffects.wake_at`."""


class WantPublish(NamedTuple):
    """`subject`: where it is published, if the topic has a pattern."""

    ticket: int
    topic: str
    payload: bytes
    subject: str = ""


class WantStream(NamedTuple):
    stream: int
    topics: tuple[str, ...]
    ticket: int = 0


class WantAdd(NamedTuple):
    stream: int
    ticket: int
    topic: str


class WantDrop(NamedTuple):
    stream: int
    ticket: int
    topic: str


class WantClose(NamedTuple):
    stream: int
    ticket: int = 0


Input = (
    SiteConnected
    | SiteFrame
    | SiteClosed
    | Notified
    | ServiceDone
    | ServiceInterrupted
    | Tick
    | WantPublish
    | WantStream
    | WantAdd
    | WantDrop
    | WantClose
)


# ── effects ──────────────────────────────────────────────────────────────────────────────

SUBSCRIBE: Final = "subscribe"
UNSUBSCRIBE: Final = "unsubscribe"
PUBLISH: Final = "publish"


class ServiceCall(NamedTuple):
    """Call the service; `ServiceDone` has the same ticket. `topic` of a publication is its
    subject. `header`: its timestamp, if that travels outside of the body."""

    ticket: int
    kind: Literal["subscribe", "unsubscribe", "publish"]
    topic: str
    body: bytes = b""
    header: str = ""


Result = OrderReceipt | Mapping[str, int]
"""Of a publication: its receipt. Of a stream: the cut of its change, by topic."""


class ClientEffects(Struct):
    """`dials`: sites to connect to from now on, and to reconnect to; each is named once.
    `receipts`: by ticket; ticket 0 is never answered. `wake_at`: when a `Tick` is due."""

    sends: list[tuple[str, SequencingFrame]] = []
    calls: list[ServiceCall] = []
    events: list[tuple[int, OrderedEvent]] = []
    receipts: list[tuple[int, Result | MotetError]] = []
    told: list[News] = []
    dials: list[str] = []
    wake_at: float = inf


class MissingNumbers(NamedTuple):
    """What a stream waits for."""

    topic: str
    numbers: tuple[int, ...]
    since: float
