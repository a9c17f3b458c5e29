"""One connection of a client to its broker, and its heartbeats.

What lives here
    line          `Line`: frames both ways; a silent connection is closed. `Dialer` reconnects, at
                  another address if necessary
    transport     a socket that the event loop and the heartbeat thread may both write to

May import: the frames in `motet.protocol`, and `motet.runtime`.

Must never: know what a session is, split a frame, or write to a socket that a fork has copied.

Test only this room: `pytest tests/unit/client/test_line.py tests/conformance`
"""
