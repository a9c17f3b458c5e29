"""The broker: a pure core, the driver that carries out what it asks for, and what they stand on.

Lives here
    core        the broker as one deterministic machine: `step(input, now) -> Output`; pure
    driver      asyncio around the core: connections, the log of events, readers, the process
    folder      what a broker keeps on disk: opened, compacted, examined, trimmed
    overlay     topology files: which brokers there are, and how they are linked

May import: everything below it (`motet.protocol`, `motet.matching`, `motet.model`,
`motet.errors`); all but `core` also `motet.runtime` and `motet.audit`.

Must never: let the core see the driver, the folder or the runtime.

Invariants owned here
    - If the core breaks its own promises, the process says so and ends.

Test only this room: `pytest tests/unit/broker tests/unit/runtime tests/scenarios`
"""
