"""The core of a broker: one deterministic machine, `step(input, now) -> Output`.

Lives here
    broker                     `BrokerCore`: the composition of all soft rooms; the entry point
    protocols                  the table of all protocols: only a literal
    durable                    the composition of all durable rooms: facts in, changes out
    image, records, rebuild    durable state as parts, encoded as bytes, and restored
    cell                       brokers of several processes: a room of its own

May import: `motet.protocol`, `motet.matching`, `motet.model`, `motet.errors`.

Must never: read a clock, open anything, draw a random number, or depend on the order of a set.

Invariants owned here
    - Durable state changes only through facts; replaying them gives the same state and outputs.
    - A misbehaving peer loses its connection, with a named reason, and has no other effect.

Test only this room: `pytest tests/unit/broker tests/scenarios`
"""
