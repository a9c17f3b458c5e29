"""What a simulated client writes down when events arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.client.happenings import Arrived, Brought
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.session.messages import Deliver
from motet.testing.history import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable

    from motet.testing.clients import SimulatedClient


def best_effort(client: SimulatedClient, arrived: Arrived, heard: Frame | None) -> None:
    assert isinstance(heard, Deliver)
    for (handles, publication), wire in zip(arrived.batch, heard.batch, strict=True):
        if len(handles) != len(wire.subscriptions):
            event = client.cluster.bodies.get(bytes(publication.body))
            client.cluster.history.odd(
                "soundness",
                f"{client.name} got {event} for subscriptions {wire.subscriptions}, "
                "not all of which are in force",
            )
        _record(client, handles, publication)


def sure(client: SimulatedClient, news: Brought) -> None:
    for at, publication in enumerate(news.batch):
        handles = news.each[at] if news.each else news.every
        _record(client, handles, publication, news.pubend, news.ticks[at])


def _record(
    client: SimulatedClient,
    handles: Iterable[int],
    publication: Publication,
    pubend: str = "",
    tick: int = 0,
) -> None:
    cluster = client.cluster
    event = cluster.bodies.get(bytes(publication.body))
    for handle in handles:
        delivery = Delivery(
            cluster.agenda.now,
            client.instance,
            handle,
            client.operations.get(handle),
            event,
            publication.publisher,
            pubend,
            tick,
            client.session,
        )
        cluster.history.deliveries.append(delivery)
        if client.process is not None and tick:
            client.process.came(delivery)
