"""The client: what applications import.

What lives here
    client        `connect`, and `Client`, on the application's event loop
    subscription  handles of advertisements and subscriptions, event buffers, and acknowledgements,
                  which are sent to the broker in batches
    publications  event encoding, and receipts: how each publication was settled
    transaction   transactions, and a client's part in transactions of other clients
    plan, explanation   plans, also as TOML, and the costs of a transaction
    local         `local`: an overlay inside one process
    sync/         `connect_sync` and `SyncClient`, the same verbs without `await`
    logs/         log readers and sinks: no session is needed to read
    channel       requests outside of any session, retried if the connection breaks
    driver        the session's asyncio driver: connecting, writing, reconnecting, answers
    registrations advertisements and subscriptions in force, and delivery of events to them
    session/      the session protocol as a pure machine
    line/         one connection, and its heartbeats
    history       optional recording of what the client sends, hears and receives
    checks        argument checks

May import: `motet.model`, `motet.errors`, `motet.audit`, the frames in `motet.protocol` and the
transports in `motet.runtime`. `local` alone may import `motet.broker`, because it runs brokers.
pyarrow only where record batches are built from an answer.

Must never: let the application's errors end a session, send a publication twice unless the
broker reports that it is missing or detects the duplicate by its number, drop an exactly-once
event, or keep anything unbounded: windows, buffers and tables have limits (the broker's window
limits exactly-once events), and dropped events are counted.

Invariants owned here
    - Exactly-once events reach the application once, in the order of each pubend's ticks, across
      connections; a loss is reported at its position in the stream.
    - The broker is told only of events that the application has processed in all its subscriptions.
    - Registrations stay in force across connections and sessions, under the same handle.

Test only this room: `pytest tests/unit/client tests/integration/test_client.py
tests/integration/test_sync_client.py tests/integration/test_local.py`
"""

from motet.client.client import Client, ConnectOptions, connect
from motet.client.explanation import Explanation
from motet.client.local import LocalOptions, LocalOverlay, local
from motet.client.plan import Plan
from motet.client.publications import Receipt
from motet.client.subscription import Advertisement, Registration, Subscription
from motet.client.transaction import Invitation, Outcome, Role, Transaction

__all__ = [
    "Advertisement",
    "Client",
    "ConnectOptions",
    "Explanation",
    "Invitation",
    "LocalOptions",
    "LocalOverlay",
    "Outcome",
    "Plan",
    "Receipt",
    "Registration",
    "Role",
    "Subscription",
    "Transaction",
    "connect",
    "local",
]
