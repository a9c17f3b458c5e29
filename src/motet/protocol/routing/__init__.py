"""Routing: SRT, PRT, CRT, and the exact meaning of "effective".

Lives here: the tables, the obligations, start ticks, joins of clients in total order,
completeness, the machine that changes them, covering.
May import: `motet.model`, `motet.matching`, `motet.errors`.
Must never: read a clock, a socket or soft state; emit anything in set order.
Owns: after quiet, every table equals the one-broker oracle projected to this broker; what a
neighbour holds from us is what our `sent` marks say; an echo follows all that it speaks for.
Test this room: `pytest tests/unit/routing tests/scenarios`
"""
