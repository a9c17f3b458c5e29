"""The broker: a pure core, and the driver that carries out what it asks for.

Lives here
    core, durable, router, inquiry, facts, config   the pure half: `step(input, now) -> Output`
    driver      the asyncio half: listens, dials, reads always, writes once per read
    topology    topology files, checked to be one tree

May import: everything below it (`motet.protocol`, `motet.matching`, `motet.model`,
`motet.errors`); `driver` and `topology` also `motet.runtime`, and `topology` pydantic.

Must never, in the pure half: read a clock, open anything, draw a random number, or depend on
the order of a set. Must never, in the driver: decide anything that the core could decide, or
stop reading a connection because another one is slow.

Invariants owned here
    - Durable state changes only through facts; replaying them gives the same state and outputs.
    - What leaves obeys the order of `contract.Output`: nothing before its facts are durable,
      per connection in the order of the steps.
    - What a peer sends can cost that peer its connection, with a named reason, and no more.
    - If the core breaks its own promises, the process says so and ends.

Test only this room: `pytest tests/unit/runtime tests/scenarios tests/integration`
"""
