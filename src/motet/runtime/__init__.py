"""The runtime: what touches the world, so that nothing else has to.

Lives here
    transport     what every transport offers; `addresses` finds the one for an address
    tcp, inproc   frames over sockets, and within one event loop
    codec         frames to bytes and back
    batches       which frames may be joined or cut without changing what they say
    outbox        the frames of one connection: in order, behind the journal, bounded
    contact       one connection as a driver sees it: who is there, is it alive?
    journal       where facts become durable
    log/          numbered records on disk that outlive the process: a room of its own
    pubend/       a stream of events on such a log, by ticks: a room of its own
    staging       rows of sinks in files, until they are committed and copied
    wiring        where a broker listens, whom it dials, how patient it is
    clock, timers, redial, traffic, loop   time, alarms, patience, counters, the event loop

May import: `motet.errors`, `motet.model`, the messages and the contract of `motet.protocol`,
asyncio, msgspec; uvloop where it is installed.

Must never: know a protocol machine or a broker's core; decide what a frame means; raise anything
but `PeerError` for what a peer sent.

Invariants owned here
    - Frames arrive in order and whole, or the connection ends; `closed` comes once, and last.
    - A frame above the limit is never read into memory.
    - Per connection, frames leave in the order they were put in, none before its facts are
      durable.
    - No queue grows without bound: best-effort events are dropped and counted, and the other
      side is told how many.

Test only this room: `pytest tests/unit/runtime tests/conformance`
"""
