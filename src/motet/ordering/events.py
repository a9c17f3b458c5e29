"""What a client is given: events in order, receipts, and news of what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct


class OrderedEvent(Struct, frozen=True, gc=False):
    """An event of a topic. `number` counts the events of the topic; it is None if the event came
    from a publisher that does not take part. `late`: it arrived after its place in the order was
    passed, so nothing is promised about its order."""

    topic: str
    payload: bytes
    number: int | None
    late: bool = False


class OrderReceipt(Struct, frozen=True):
    """The event is published under this number, and its site knows it: no stream passes it."""

    topic: str
    number: int


class LostEvents(NamedTuple):
    """Events that the service has lost: the stream went on without them."""

    stream: int
    topic: str
    numbers: tuple[int, ...]


class Gap(NamedTuple):
    """The stream lost its place in the order, and joins anew. Events from `after` on may be
    missing, or come tagged `late`, until `Joined`."""

    stream: int
    reason: str
    after: Mapping[str, int]


class Joined(NamedTuple):
    """A change of the stream is made. From now on it has the topics of the cut, and delivers their
    events in order behind it. `id` and `change` name it at the sites."""

    stream: int
    id: str
    change: int
    cut: Mapping[str, int]


News = LostEvents | Gap | Joined
