"""Ordering: one order across topics, over any event service, for applications that import it.

    async with motet.ordering.connect("nats://127.0.0.1:4222", sequencer="motet://…") as client:
        async with client.subscribe("orders", "prices") as stream:
            receipt = await client.publish("orders", b"...")
            async for event in stream: ...

What lives here
    client        `connect`, `OrderingClient`, `OrderedStream`: asyncio around the machine
    sync          `connect_sync`: the same without `await`
    sites         connections to sites
    topics        `Topic`: many subjects under one topic
    events        what applications are given
    machine       `OrderingMachine`: the pure machine of a client, composed of the following
    contract      its inputs and effects
    publisher     numbers, publication, confirmation, in the sequence that the application wants
    stream        waiting, asking, losses, changes of topics, joining anew
    delivery      the rule of delivery: clocks, and what they hold back
    spans         sets of numbers
    envelope      how a batch of events travels as one message
    history       records what a client publishes and is given, for the audit

May import: errors, the frames in `motet.protocol`, `motet.runtime`, `motet.audit`, and of
`motet.client` its line, checks and facades.

Must never: read a clock or a socket in a machine; deliver an event untagged before what its
timestamp names; use a number after half of its lease; keep anything unbounded.

Test only this room: `pytest tests/unit/ordering`
"""

from motet.ordering.client import OrderedStream, OrderingClient, SentEvent, connect
from motet.ordering.contract import MissingNumbers
from motet.ordering.events import Gap, LostEvents, OrderedEvent, OrderReceipt
from motet.ordering.services import Service, service_of
from motet.ordering.sync import (
    SyncOrderedStream,
    SyncOrderingClient,
    SyncSentEvent,
    connect_sync,
)
from motet.ordering.topics import Topic

__all__ = [
    "Gap",
    "LostEvents",
    "MissingNumbers",
    "OrderReceipt",
    "OrderedEvent",
    "OrderedStream",
    "OrderingClient",
    "SentEvent",
    "Service",
    "SyncOrderedStream",
    "SyncOrderingClient",
    "SyncSentEvent",
    "Topic",
    "connect",
    "connect_sync",
    "service_of",
]
