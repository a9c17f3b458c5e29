"""Mobility: a live client moves to another broker, as a transaction that its broker decides.

Lives here
    messages     frames with clients, offers between brokers, and the control messages of a move
    facts        what is journaled: the decision, and that the broker is drained
    claims       what a neighbour may say about a session that comes
    state        moves on their way, forwarding addresses, pins
    relocation   the rows of a client in the routing tables, re-pointed along the path
    durable      what the decision and the control messages do
    soft         offers, the freeze before the decision, hellos that arrive early
    strays       best-effort events that follow a client
    drain        a broker that takes in no sessions, and the list of those that it has

May import: `motet.errors`, `motet.model`, `motet.protocol`, and the rooms of routing, sessions,
delivery, links and transactions.

Must never: change anything durable before the decision.

Test only this room: `pytest tests/unit/mobility`
"""
