"""The protocol machines: pure and deterministic, without clocks and sockets.

Lives here: `contract` (inputs and outputs of a broker's core), one room per protocol (its
`messages` and, for most, its `machine` and `state`), the frames of the wire.
May import: `motet.model`, `motet.matching`, `motet.errors`, msgspec.
Must never: read a clock, draw a random number, open anything, or depend on set order.
Owns: the legal transitions, as literal tables; a missing row is a named error.
Test this room: `pytest tests/unit tests/scenarios`
"""
