"""Hosted: clients whose code runs in a broker's container, with state that moves along.

Lives here
    messages     frames between a broker, its container, and the clients that run there
    facts        what is journaled: a client becomes hosted, and its checkpoints
    state        a hosted client's state and outputs
    durable      what the facts do, and what moves with a session
    soft         which copies run, checkpoints, the halt before a move

May import: `motet.errors`, `motet.model`, `motet.protocol`, and the rooms of sessions, delivery and
mobility.

Must never: let a move be decided while a copy of its client runs here.

Test only this room: `pytest tests/unit/hosted`
"""
