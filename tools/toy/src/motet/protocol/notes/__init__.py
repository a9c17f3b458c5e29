"""Notes: what a client writes down, and reads again once, after a while.

Lives here
    messages     the frames between a client and its broker
    facts        what is journaled
    state        the notes of sessions
    durable      what facts do
    soft         the frames and the timer

May import: `motet.protocol`.

Must never: keep the note of a session that has ended.

Test only this room: `pytest tests/unit/notes`
"""
