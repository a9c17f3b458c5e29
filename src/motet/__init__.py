"""Motet: transactional, content-based publish/subscribe for Python.

    async with motet.connect("motet://127.0.0.1:7701", client_id="alice") as client:
        await client.advertise("process = 'p1'")
        async with client.subscribe("step > 1") as subscription:
            await client.publish({"process": "p1", "step": 2}, payload=b"...")
            async for event in subscription:
                print(event["step"], event.payload)

Without `await`: `motet.connect_sync`. A whole overlay in one process: `motet.local(brokers=3)`.
Every error is here too; `motet.errors` has them sorted by blame.
"""

from motet import errors
from motet.broker.topology import Topology
from motet.client.client import Client, connect
from motet.client.ledger import Receipt
from motet.client.local import LocalOverlay, SyncOverlay, local, local_sync
from motet.client.log_batch import LogBatch
from motet.client.reading import LogReader, open_log, read
from motet.client.standing import Advertisement
from motet.client.subscription import Subscription
from motet.client.sync import (
    SyncAdvertisement,
    SyncClient,
    SyncReceipt,
    SyncSubscription,
    connect_sync,
)
from motet.client.sync_reading import SyncLogReader, open_log_sync, read_sync
from motet.errors import (
    AddressError,
    ClientElsewhere,
    ClosedError,
    Disconnected,
    DiskFailed,
    EventError,
    EventsLost,
    Fenced,
    FilterError,
    FilterTooComplex,
    FrameError,
    InvariantError,
    LogCorrupted,
    LogInUse,
    LogTrimmed,
    MisuseError,
    MotetError,
    NameTaken,
    NoClientsHere,
    NoSuchOperation,
    NotAdvertised,
    NotEffective,
    NotOffered,
    PeerError,
    ProtocolError,
    SessionIsDurable,
    SlowConsumer,
    StaleState,
    StillOwed,
    StorageError,
    TooLate,
    TopologyError,
    UnavailableError,
    UnknownBroker,
    VersionError,
    Withdrawn,
    WrittenByAnotherVersion,
)
from motet.model import Event, Filter, attr

__version__ = "0.1.0"

__all__ = [
    "AddressError",
    "Advertisement",
    "Client",
    "ClientElsewhere",
    "ClosedError",
    "Disconnected",
    "DiskFailed",
    "Event",
    "EventError",
    "EventsLost",
    "Fenced",
    "Filter",
    "FilterError",
    "FilterTooComplex",
    "FrameError",
    "InvariantError",
    "LocalOverlay",
    "LogBatch",
    "LogCorrupted",
    "LogInUse",
    "LogReader",
    "LogTrimmed",
    "MisuseError",
    "MotetError",
    "NameTaken",
    "NoClientsHere",
    "NoSuchOperation",
    "NotAdvertised",
    "NotEffective",
    "NotOffered",
    "PeerError",
    "ProtocolError",
    "Receipt",
    "SessionIsDurable",
    "SlowConsumer",
    "StaleState",
    "StillOwed",
    "StorageError",
    "Subscription",
    "SyncAdvertisement",
    "SyncClient",
    "SyncLogReader",
    "SyncOverlay",
    "SyncReceipt",
    "SyncSubscription",
    "TooLate",
    "Topology",
    "TopologyError",
    "UnavailableError",
    "UnknownBroker",
    "VersionError",
    "Withdrawn",
    "WrittenByAnotherVersion",
    "attr",
    "connect",
    "connect_sync",
    "errors",
    "local",
    "local_sync",
    "open_log",
    "open_log_sync",
    "read",
    "read_sync",
]
