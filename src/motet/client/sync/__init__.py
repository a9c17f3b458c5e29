"""The client without `await`: the same verbs, for scripts and threads.

What lives here
    client        `connect_sync`, `SyncClient` and its handles; `local_sync`
    roles         `SyncRole`: taking part in other clients' transactions, in threads
    facade        synchronous facades of asynchronous objects, whose event loop runs in a thread of
                  its own

May import: the rest of the client.

Must never: touch the state of a client from another thread than its loop's, except to take events
out of a subscription's buffer.

Test only this room: `pytest tests/integration/test_sync_client.py
tests/integration/test_sync_transactions.py`
"""

from motet.client.sync.client import (
    SyncAdvertisement,
    SyncClient,
    SyncOverlay,
    SyncReceipt,
    SyncSession,
    SyncSubscription,
    SyncTransaction,
    connect_sync,
    local_sync,
)
from motet.client.sync.roles import SyncRole

__all__ = [
    "SyncAdvertisement",
    "SyncClient",
    "SyncOverlay",
    "SyncReceipt",
    "SyncRole",
    "SyncSession",
    "SyncSubscription",
    "SyncTransaction",
    "connect_sync",
    "local_sync",
]
