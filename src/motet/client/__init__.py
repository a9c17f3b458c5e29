"""The client: what applications import.

What lives here
    client        `connect` and `Client`, on the application's event loop
    sync          `connect_sync` and `SyncClient`, the same verbs without `await`
    local         `local` and `local_sync`: an overlay inside one process
    inquiry       asking a broker for its status without being its client
    standing      what an application holds while a filter of its own is in force: advertisements,
    subscription  and subscriptions with their events
    ledger        receipts: the fate of publications
    machine       the session protocol as a pure machine; the simulator uses it too
    operation, window   its requests, and its publications whose fate is open
    happenings    what the machine tells its driver
    conversation  the machine's asyncio driver: connecting, writing, reconnecting
    ear, pulse    one connection: who is silent for too long, and heartbeats that a blocking
                  handler cannot stop
    loop_thread   an event loop for callers that have none
    outgoing, failures, opening   small change: bodies, errors, awaitables with `async with`

May import: `motet.model`, `motet.errors`, the frames in `motet.protocol` and the transports in
`motet.runtime`. `local` alone may import `motet.broker`, because it runs brokers.

Must never: let the application's errors end a session, send a publication twice unless the
broker says that it does not have it, or keep anything unbounded: windows, buffers and books have
limits, and what is dropped is counted. `machine`, `operation`, `window` and `happenings` do no
I/O, read no clock and draw no randomness.

Invariants owned here
    - Every request is resolved exactly once by the time its client ends.
    - Every publication is settled exactly once: accepted, refused, or unknown.
    - Requests and publications leave in the order in which the application made them.
    - What is in force stays in force across connections and sessions, under the same handle.

Test only this room: `pytest tests/unit/client tests/integration/test_client.py
tests/integration/test_sync_client.py tests/integration/test_local.py`
"""
