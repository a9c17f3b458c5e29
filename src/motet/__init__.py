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
from motet.client.client import Client
from motet.client.connecting import connect
from motet.client.explaining import Explanation
from motet.client.ledger import Receipt
from motet.client.local import LocalOverlay, SyncOverlay, local, local_sync
from motet.client.log_batch import LogBatch
from motet.client.plan import Plan
from motet.client.reading import LogReader, open_log, read
from motet.client.standing import Advertisement
from motet.client.subscription import Subscription
from motet.client.sync import SyncClient, SyncReceipt, connect_sync
from motet.client.sync_reading import SyncLogReader, open_log_sync, read_sync
from motet.client.sync_standing import SyncAdvertisement, SyncSubscription
from motet.client.sync_transaction import SyncTransaction
from motet.client.transaction import Invitation, Transaction
from motet.errors import (
    Aborted,
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
    InTransaction,
    InvariantError,
    InvitationRefused,
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
    NotInvited,
    NotOffered,
    OutcomeUnknown,
    PeerError,
    PlanError,
    ProtocolError,
    SessionIsDurable,
    SinkTaken,
    SlowConsumer,
    StagingLost,
    StaleState,
    StillOwed,
    StillSpreading,
    StorageError,
    TooLate,
    TopologyError,
    TransactionError,
    TransactionOver,
    UnavailableError,
    UnknownBroker,
    UnknownClient,
    VersionError,
    Withdrawn,
    WrittenByAnotherVersion,
)
from motet.model import Event, Filter, attr

__version__ = "0.1.0"

__all__ = [
    "Aborted",
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
    "Explanation",
    "Fenced",
    "Filter",
    "FilterError",
    "FilterTooComplex",
    "FrameError",
    "InTransaction",
    "InvariantError",
    "Invitation",
    "InvitationRefused",
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
    "NotInvited",
    "NotOffered",
    "OutcomeUnknown",
    "PeerError",
    "Plan",
    "PlanError",
    "ProtocolError",
    "Receipt",
    "SessionIsDurable",
    "SinkTaken",
    "SlowConsumer",
    "StagingLost",
    "StaleState",
    "StillOwed",
    "StillSpreading",
    "StorageError",
    "Subscription",
    "SyncAdvertisement",
    "SyncClient",
    "SyncLogReader",
    "SyncOverlay",
    "SyncReceipt",
    "SyncSubscription",
    "SyncTransaction",
    "TooLate",
    "Topology",
    "TopologyError",
    "Transaction",
    "TransactionError",
    "TransactionOver",
    "UnavailableError",
    "UnknownBroker",
    "UnknownClient",
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
