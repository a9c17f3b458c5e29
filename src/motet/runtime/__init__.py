"""The runtime: the code that touches sockets, disks and clocks, so that no other code has to.

Lives here
    transport     the interface of every transport; `addresses` picks the one for an address
    tcp, inproc   frames over sockets, and within one event loop
    codec         encodes and decodes frames
    log/          numbered records on disk that survive a crash: a room of its own
    pubend/       a stream of events on such a log, by ticks: a room of its own
    staging       rows of sinks in files, until they are committed and copied
    clock, redial, loop   time, retries with backoff, the event loop

May import: `motet.errors`, `motet.model`, the messages and the contract of `motet.protocol`,
asyncio, msgspec; uvloop where it is installed.

Must never: know a protocol machine or a broker's core; decide what a frame means; raise anything
but `PeerError` because of a peer's input.

Invariants owned here
    - Frames arrive in order and whole, or the connection ends; `closed` is called once, and last.
    - A frame above the limit is never read into memory.

Test only this room: `pytest tests/unit/runtime tests/conformance`
"""
