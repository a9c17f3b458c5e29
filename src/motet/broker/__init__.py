"""The broker: a pure core, and the driver that carries out what it asks for.

Lives here
    config, facts, durable       what a broker is told, what it writes down, what that changes
    carrying, consequences       what follows from it, inside and outside
    core, greeting, linking, router, inquiry, account   the soft half: `step(input, now) -> Output`
    streams, total_order         exactly-once events: our own pubend, and the streams of all others
    pending, leaving, remembered what is not in our log yet, what must not leave yet, what it knows
    sinking, reaching            commits of sinks until they are checked; how far back one may reach
    interests                    what streams want to know of the routing tables
    cell                         brokers of several processes: a room of its own
    image, records, rebuild      durable state as parts, all of it as bytes, and back
        (all of these are the pure half)
    driver, dialling, writing    the asyncio half: reads always, writes once per round of reads
    driven                       what the driver needs of a core
    recovery, compaction         a broker's folder: opened, read, kept short
    service, reloading           one broker as a process, and its topology read again
    staging                      rows on their way into sinks, beside the core
    hatch                        requests that are answered beside the core, one at a time
    pubend, upkeep, retaining    its log of events: appended to, sealed and trimmed, for how long
    recorded                     the same in a history, if one is wanted
    grouping                     when records go to that log: at once, or with others
    reading, late                late readers of that log, answered beside the core
    examination                  a folder, looked at
    topology, topology_file      topology files, checked to be one tree

May import: everything below it (`motet.protocol`, `motet.matching`, `motet.model`,
`motet.errors`); the half that is not pure also `motet.runtime` and `motet.audit`, and
`topology_file` pydantic.

Must never, in the pure half: read a clock, open anything, draw a random number, or depend on
the order of a set. Must never, in the driver: decide anything that the core could decide, or
stop reading a connection because another one is slow.

Invariants owned here
    - Durable state changes only through facts; replaying them gives the same state and outputs.
    - What leaves obeys the order of `contract.Output`: nothing before its facts are durable,
      per connection in the order of the steps.
    - What a peer sends can cost that peer its connection, with a named reason, and no more.
    - If the core breaks its own promises, the process says so and ends.

Test only this room: `pytest tests/unit/broker tests/unit/runtime tests/scenarios`
"""
