"""The protocol machines: pure, deterministic, deaf to clocks and sockets.

Lives here: `contract` (what goes in and comes out of a broker), one room per protocol (its
`messages`, and where there is one its `machine` and `state`), the frames of the wire.
May import: `motet.model`, `motet.matching`, `motet.errors`, msgspec.
Must never: read a clock, draw a random number, open anything, or depend on set order.
Owns: the legal moves, each a literal table; a missing row is an error with a name.
Test this room: `pytest tests/unit tests/scenarios`
"""
