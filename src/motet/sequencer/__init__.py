"""The sequencer: a process that is one site, or several of them, of a line.

Lives here: the core of a site, its configuration, its records, and the process around them. The
core composes the machine of `protocol/sequencing` with the links of `protocol/link`, and gives the
driver of brokers something to run.
Must never: let a frame leave before the facts behind it are durable; know an event service.

Test this room: `pytest tests/unit/sequencer tests/unit/sequencing`
"""
