"""The client's side of a session: a pure machine that the asyncio client and the simulator share.

What lives here
    machine       `ClientMachine`, the only entry point: connections, requests, publications, events
    state         the states of a session and the legal transitions; the machine's outputs: frames
                  to send, and notices for its driver
    requests      requests: made, numbered, answered once; the registrations and parts in
                  transactions that result from them
    moves         moves to other brokers, asked for or told
    streams       unsettled publications, and the client's position in each pubend

May import: `motet.model`, `motet.errors` and the frames in `motet.protocol`.

Must never: do I/O, read a clock, draw randomness, or import `motet.runtime` or the rest of the
client.

Invariants owned here
    - Every request is resolved exactly once by the time its client ends.
    - Every publication is settled exactly once: accepted, refused, or unknown.
    - Requests and publications leave in the order in which the application made them.
    - Exactly-once events are reported once, in the order of each pubend's ticks, across
      connections; a loss is reported at its position in the stream.

Test only this room: `pytest tests/unit/client`
"""
