"""Facts of sessions: opened, dropped and ended sessions, requests, passed deadlines."""

from __future__ import annotations

from msgspec import Struct

from motet.model import OpId
from motet.protocol.session.messages import Request


class SessionOpened(Struct, tag="open", array_like=True, frozen=True):
    client: str
    resume: str | None
    instance: str = ""
    keep_s: float = 0.0
    """Above 0 the session is durable. A process that adopts one resumes it by its epoch."""
    total_order: bool = False
    published: int = 0
    """The last publication that the client has sent in the session it resumes."""
    plain: bool = False
    """It is not in total order, and others are told so. Earlier releases told nobody."""


class SessionDropped(Struct, tag="drop", array_like=True, frozen=True):
    """The client's connection is gone; its lease runs. `cursors`: how far a durable client has
    acknowledged, by pubend. `done`: the same for subscriptions that are further."""

    client: str
    epoch: str
    cursors: dict[str, int] = {}
    done: dict[int, dict[str, int]] = {}
    published: int = 0
    """The last publication received."""


class SessionEnded(Struct, tag="end", array_like=True, frozen=True):
    """By a goodbye, or because the lease ran out."""

    client: str
    epoch: str


class RequestReceived(Struct, tag="request", array_like=True, frozen=True):
    client: str
    epoch: str
    request: Request
    tick: int = 0
    """The next tick of our pubend, at which subscriptions of this request start."""
    refused: tuple[str, str] = ("", "")
    """Error and text, if the request is refused for a reason that is not in durable state."""
    patient: bool = False
    """The request waits if there is no route to the root. Journals of older releases lack this
    field: they refused such a request at once, and are replayed accordingly."""
    published: int = 0
    """For an advertisement: the last publication received before it."""


class DeadlinePassed(Struct, tag="deadline", array_like=True, frozen=True):
    op: OpId
    missing: tuple[str, ...]


SessionFact = SessionOpened | SessionDropped | SessionEnded | RequestReceived | DeadlinePassed
