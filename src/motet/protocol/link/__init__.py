"""Links: reliable, ordered control between neighbours over connections that break.

Lives here: the frames between brokers, the counters of a link, the machine that moves them.
May import: `motet.model`, `motet.errors`, the contract, and the messages it carries.
Must never: look into the messages it carries; number a publication durably.
Owns: control arrives once and in order; nothing is acknowledged before it is durable; a
publication never overtakes control that was sent before it.
Test this room: `pytest tests/unit/link`
"""
