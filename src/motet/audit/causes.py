"""Whether effects come behind their causes, and all streams fit into one order. Pure.

The causes of an event are what its client had published or been given before, and their causes.
What a client has published is a sequence, so all causes of an event are told by how much of each
client's sequence is among them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from motet.audit.circles import circle

Event = TypeVar("Event", bound=Hashable)
Who = TypeVar("Who", bound=Hashable)
"""Names a stream or a client."""


class ClientStep(NamedTuple, Generic[Event]):
    event: Event
    is_published: bool
    """By this client; else it was given."""


class EarlyEffect(NamedTuple, Generic[Who, Event]):
    stream: Who
    effect: Event
    cause: Event


class Circle(NamedTuple, Generic[Who, Event]):
    steps: tuple[tuple[Event, Event, Who], ...]
    """An event, the one that a stream got behind it, and this stream."""


def early_effects(
    streams: Mapping[Who, Sequence[Event]], clients: Mapping[Who, Sequence[ClientStep[Event]]]
) -> list[EarlyEffect[Who, Event]]:
    """For each stream the last event that it got before one of its causes, if there is any."""
    pasts = _Pasts(clients)
    found = []
    for stream, events in streams.items():
        behind: dict[Who, tuple[int, Event]] = {}
        """By client: the first of its events that comes behind here."""
        for event in reversed(events):
            cause = pasts.among(event, behind)
            if cause is not None:
                found.append(EarlyEffect(stream, event, cause))
                break
            place = pasts.places.get(event)
            if place is not None:
                client, nth = place
                if client not in behind or nth < behind[client][0]:
                    behind[client] = nth, event
    return found


def one_circle(streams: Mapping[Who, Sequence[Event]]) -> Circle[Who, Event] | None:
    """Events that no order contains in the way that these streams got them."""
    edges: dict[tuple[Event, Event], Who] = {}
    for stream, events in streams.items():
        for edge in pairwise(events):
            edges.setdefault(edge, stream)
    found = circle(edges)
    return Circle(tuple((one, other, edges[one, other]) for one, other in found)) if found else None


class _Pasts(Generic[Who, Event]):
    """By event: how many publications of each client are among its causes."""

    def __init__(self, clients: Mapping[Who, Sequence[ClientStep[Event]]]) -> None:
        self.places: dict[Event, tuple[Who, int]] = {}
        """Client of an event, and the number of its publications before."""
        for client, steps in clients.items():
            published = (step.event for step in steps if step.is_published)
            for nth, event in enumerate(dict.fromkeys(published)):
                self.places.setdefault(event, (client, nth))
        self._known: dict[Event, dict[Who, int]] = {}
        """What others have published; the client's own events are those before its place."""
        self._settle(clients)

    def among(self, event: Event, behind: Mapping[Who, tuple[int, Event]]) -> Event | None:
        """One of these that is a cause of the event."""
        place = self.places.get(event)
        if place is None or not behind:
            return None
        own = behind.get(place[0])
        if own is not None and own[0] < place[1]:
            return own[1]
        known = self._known[event]
        if len(known) <= len(behind):
            for client, count in known.items():
                found = behind.get(client)
                if found is not None and found[0] < count:
                    return found[1]
        else:
            for client, (nth, cause) in behind.items():
                if nth < known.get(client, 0):
                    return cause
        return None

    def _settle(self, clients: Mapping[Who, Sequence[ClientStep[Event]]]) -> None:
        """Each client goes on until it was given an event whose causes are not known yet."""
        waiting: dict[Event, list[Who]] = {}
        walks = {client: self._walk(client, steps) for client, steps in clients.items()}
        ready = list(walks)
        while ready:
            client = ready.pop()
            for missing, settled in walks[client]:
                if settled is not None:
                    ready += waiting.pop(settled, ())
                elif missing is not None and missing not in self._known:
                    waiting.setdefault(missing, []).append(client)
                    break
            if not ready and waiting:  # nobody can be given what is published later: pass it
                ready = waiting.pop(next(iter(waiting)))

    def _walk(
        self, client: Who, steps: Sequence[ClientStep[Event]]
    ) -> Iterator[tuple[Event | None, Event | None]]:
        """Yields an event that it was given and whose causes must be known, or one that it has
        published and whose causes are known now."""
        known: dict[Who, int] = {}
        is_shared = False
        for event, is_published in steps:
            if is_published:
                if event not in self._known:
                    self._known[event] = known
                    is_shared = True
                    yield None, event
                continue
            place = self.places.get(event)
            if place is None or place[0] == client or known.get(place[0], 0) > place[1]:
                continue
            if event not in self._known:
                yield event, None
            if is_shared:
                known, is_shared = dict(known), False
            for other, count in self._known.get(event, known).items():
                if other != client and count > known.get(other, 0):
                    known[other] = count
            known[place[0]] = place[1] + 1
