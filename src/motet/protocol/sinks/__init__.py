"""Sinks: batches of any size that become one transaction of one pubend.

Decision 29 says how. Rows are staged in files of the sink's home broker, beside the core; a commit
is one fact, and what it commits is copied into the pubend's log behind it.

Lives here
    messages     frames between a task that stages rows and a broker
    state        what is durable of a sink: its last epoch, and what is committed and not copied
    machine      which commits count

May import: `motet.errors`, `motet.model`, other rooms' messages.

Must never: do I/O; commit an epoch or a key twice; forget a block before the log has it.

Test only this room: `pytest tests/unit/sinks`
"""
