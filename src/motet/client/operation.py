"""One request of a client, the frame that carries it, and where its events go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from motet.model import Filter
from motet.protocol.session.messages import (
    AdvertiseRequest,
    Request,
    SubscribeRequest,
    Tag,
    TxRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
)

Kind = Literal["advertise", "unadvertise", "subscribe", "unsubscribe", "ask"]
"""`ask` is whatever a transaction needs besides."""

INVERSE: dict[Kind, Kind] = {"advertise": "unadvertise", "subscribe": "unsubscribe"}


@dataclass(slots=True, eq=False)
class Operation:
    """Under way, in force, or both while it is renewed in a new session."""

    handle: int
    kind: Kind
    filter: Filter | None
    target: Operation | None
    wait: bool
    timeout_s: float
    after: int
    """Ordinal of the last publication made before it: they leave in this order."""
    awaited: bool = True
    """Somebody wants the answer."""
    sequence: int = 0
    name: str = ""
    """Of what is to be in force: how plans, and later processes of a durable client, find it."""
    since: dict[str, int] = field(default_factory=dict)
    """How far a subscription reaches into the past, by pubend."""
    tag: Tag | None = None
    """The transaction that it is part of."""
    gone: bool = False
    """Ended by a transaction, or aborted with it: no answer that comes later puts it in force."""
    asks: TxRequest | None = None

    def frame(self) -> Request:
        match self.kind:
            case "advertise" | "subscribe":
                assert self.filter is not None
                what = (self.sequence, self.filter, self.wait, self.timeout_s, self.name)
                if self.kind == "advertise":
                    return AdvertiseRequest(*what, self.tag)
                return SubscribeRequest(*what, self.since, self.tag)
            case "unadvertise" | "unsubscribe":
                assert self.target is not None
                undo = UnadvertiseRequest if self.kind == "unadvertise" else UnsubscribeRequest
                what_of = (self.sequence, self.target.sequence, self.wait, self.timeout_s)
                return undo(*what_of, self.tag)
            case "ask":
                assert self.asks is not None
                return replace(self.asks, sequence=self.sequence)


ROUTES_REMEMBERED = 4096


class Routes(dict[tuple[int, ...], tuple[int, ...]]):
    """Sequences of subscriptions to their handles, remembered per combination."""

    def __init__(self, subscribed: dict[int, Operation]) -> None:
        self._subscribed = subscribed

    def __missing__(self, sequences: tuple[int, ...]) -> tuple[int, ...]:
        if len(self) >= ROUTES_REMEMBERED:
            self.clear()
        known = self._subscribed
        handles = tuple(known[s].handle for s in sequences if s in known)
        self[sequences] = handles
        return handles
