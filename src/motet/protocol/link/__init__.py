"""Links: reliable, ordered control messages between neighbours, across broken connections.

Lives here: the frames between brokers, the counters of a link, the machine that moves them.
May import: `motet.model`, `motet.errors`, the contract, and the messages it carries.
Must never: inspect the messages it carries; number a publication durably.
Owns: control arrives once and in order; a message is durable before it is acknowledged; a
publication never overtakes control that was sent before it.
Test this room: `pytest tests/unit/link`
"""
