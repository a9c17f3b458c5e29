"""The client: what applications import.

What lives here
    client        `Client`, on the application's event loop; `connecting` has `connect`
    transaction, plan   what several clients do together, and all of it at once
    plan_file, explaining   plans as TOML; what a transaction costs on this overlay
    sync, sync_standing, sync_transaction   `connect_sync` and `SyncClient`, the same verbs
                  without `await`
    local         `local` and `local_sync`: an overlay inside one process
    inquiry       asking a broker for its status without being its client
    reading, sync_reading, log_batch   reading the logs of a broker, days later if need be
    sinking, sync_sinking   batches of any size that become one transaction
    standing      what an application holds while a filter of its own is in force: advertisements,
    subscription  and subscriptions with their events
    ledger        receipts: the fate of publications
    about, checks   what an application may ask its client; what it hands over, checked
    machine       the session protocol as a pure machine; the simulator uses it too
    requests, operation, window, streams   its requests and what an earlier process has left, its
                  publications whose fate is open, and how far it has come in each pubend
    transacting   its part in transactions
    moves         the states of a session, and what leads from one to another
    happenings    what the machine tells its driver
    conversation  the machine's asyncio driver: connecting, writing, reconnecting
    wishes, questions   its parts that wait for answers: filters that are to be in force, the
                  broker's status
    arrivals, progress   events on their way to subscriptions; and how the broker learns, later
                  and in bulk, what the application is done with
    recording     what it sends, hears and gets, in a history, if one is wanted
    ear, pulse    one connection: who is silent for too long, and heartbeats that a blocking
                  handler cannot stop
    loop_thread   an event loop for callers that have none
    outgoing, failures, opening   small change: bodies, errors, awaitables with `async with`

May import: `motet.model`, `motet.errors`, `motet.audit`, the frames in `motet.protocol` and the
transports in `motet.runtime`. `local` alone may import `motet.broker`, because it runs brokers.
pyarrow only where records are made of an answer.

Must never: let the application's errors end a session, send a publication twice unless the
broker says that it does not have it or knows it again by its number, drop an exactly-once event,
or keep anything unbounded: windows, buffers and books have limits (exactly-once events have the
broker's window), and what is dropped is counted. `machine`, `operation`, `window`, `streams` and
`happenings` do no I/O, read no clock and draw no randomness.

Invariants owned here
    - Every request is resolved exactly once by the time its client ends.
    - Every publication is settled exactly once: accepted, refused, or unknown.
    - Requests and publications leave in the order in which the application made them.
    - Exactly-once events reach the application once, in the order of each pubend's ticks, across
      connections; what is lost is told in its place.
    - The broker is told only of what the application is done with in all its subscriptions.
    - What is in force stays in force across connections and sessions, under the same handle.

Test only this room: `pytest tests/unit/client tests/integration/test_client.py
tests/integration/test_sync_client.py tests/integration/test_local.py`
"""
