"""Routing: SRT, PRT, CRT, and the exact meaning of "effective".

Lives here: the tables, the obligations, start ticks, joins of clients in total order,
completeness, the machine that changes them, covering.
May import: `motet.model`, `motet.matching`, `motet.errors`.
Must never: read a clock, a socket or soft state; emit anything in set order.
Owns: once quiet, every table equals the one-broker oracle projected to this broker; a neighbour has
from us exactly what our `sent` marks say; an echo follows everything that it confirms.
Test this room: `pytest tests/unit/routing tests/scenarios`
"""
