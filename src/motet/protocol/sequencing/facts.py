"""Facts of a site. One frame of a client, or of another site, is one fact."""

from __future__ import annotations

from msgspec import Struct


class TopicsNamed(Struct, tag="topics", array_like=True, frozen=True):
    """Topics that live here are heard of for the first time."""

    names: tuple[str, ...]


class NumbersRequested(Struct, tag="num", array_like=True, frozen=True):
    """Requests `first`, `first + 1`, … of an instance. Those that it has made before are only
    answered again."""

    client: str
    first: int
    topics: tuple[int, ...]
    confirmed: int = 0


class NumbersConfirmed(Struct, tag="pubd", array_like=True, frozen=True):
    client: str
    upto: int


class GivenBack(Struct, tag="back", array_like=True, frozen=True):
    client: str
    requests: tuple[int, ...]


class LeasePassed(Struct, tag="lease", array_like=True, frozen=True):
    """These requests were answered too long ago, and not confirmed."""

    requests: tuple[tuple[str, tuple[int, ...]], ...]


class ChangeRequested(Struct, tag="chg", array_like=True, frozen=True):
    client: str
    stream: str
    number: int
    topics: tuple[int, ...]


class StreamsExpired(Struct, tag="expired", array_like=True, frozen=True):
    """Nothing was heard of these streams, which have their home here."""

    streams: tuple[str, ...]


class InstancesForgotten(Struct, tag="forgot", array_like=True, frozen=True):
    """These instances have been away for long, and none of their numbers is open."""

    clients: tuple[str, ...]


SequencingFact = (
    TopicsNamed
    | NumbersRequested
    | NumbersConfirmed
    | GivenBack
    | LeasePassed
    | ChangeRequested
    | StreamsExpired
    | InstancesForgotten
)
