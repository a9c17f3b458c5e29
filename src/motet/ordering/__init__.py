"""Ordering: one order across topics, over any event service, for applications that import it.

What lives here
    machine       `OrderingMachine`: the pure machine of a client, composed of the others
    contract      its inputs and effects
    publisher     numbers, publication, confirmation, in the sequence that the application wants
    stream        waiting, asking, losses, changes of topics, joining anew
    delivery      the rule of delivery: clocks, and what they hold back
    envelope      how a batch of events travels as one message
    events        what applications are given

May import: errors and `motet.protocol.sequencing`.

Must never: read a clock or a socket in a machine; deliver an event untagged before what its
timestamp names; use a number after half of its lease.

Test only this room: `pytest tests/unit/ordering`
"""
