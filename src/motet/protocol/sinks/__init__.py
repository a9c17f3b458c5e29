"""Sinks: batches of any size that become one transaction of one pubend.

See decision 29. Rows are staged in files of the sink's home broker, outside the core; a commit is
one fact, after which the committed rows are copied into the pubend's log.

Lives here
    messages     frames between a task that stages rows and a broker
    state        durable state of a sink: its last epoch, and blocks committed but not yet copied
    durable      which commits count, and their effects
    soft         commits whose staged files are being checked

May import: `motet.errors`, `motet.model`, other rooms' messages.

Must never: do I/O; commit an epoch or a key twice; forget a block before the log has it.

Test only this room: `pytest tests/unit/sinks`
"""
