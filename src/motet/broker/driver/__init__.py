"""The broker under asyncio: it carries out the outputs of the core.

Lives here
    driver           one turn per read; the order of `Output`; timers; one write per round
    contact          one connection: its frames in and out, held until durable, bounded; dialling
    pubend           the log of events: appends, alone or in groups
    history          records the log in a history for the audit, if one is wanted
    side_requests    requests that are answered outside the core, one at a time: those of late
                     readers of the log, and of programs that stage rows for sinks
    service          one broker as a process, from its folder; reloads its topology

May import: all of `motet.broker`, `motet.runtime`, `motet.audit` and everything below them.

Must never: decide anything that the core could decide, or stop reading a connection because another
one is slow.

Invariants owned here
    - Outputs obey the order of `contract.Output`: nothing leaves before its facts are durable,
      and per connection everything leaves in the order of the steps.
    - No queue grows without bound: best-effort events are dropped and counted, and the peer
      is told how many.

Test only this room: `pytest tests/unit/runtime tests/unit/broker`
"""
