"""Cells: one broker of the overlay made of several processes, and links that are bundles.

Lives here
    bundle       stream links to members of neighbouring cells and of our own: which link carries
                 which stream, frames carried for other members, whose word counts
    membership   an ordinary broker as head of a cell, as neighbour of one, or both; all mates have
                 a head's durable state, and every fact, before what rests on it leaves the head
    mate         `MateCore`, a member that keeps nothing on disk and carries streams only
                 (all of it pure)

May import: the pure half of `motet.broker`, and everything below it.

Must never: let a mate answer for what it does not know (`motet.protocol.cell.belief`); carry a
frame sideways twice; wait for a mate without a limit.

Invariants owned here
    - A mate has every fact before anything that rests on it leaves its head, or the head has
      given the mate up; then it restarts from scratch, and nothing that it said since counts.
    - All members compute from the same durable state; they agree on nothing else.
    - A mate acknowledges nothing of a pubend before every interested neighbour has, and nothing
      at all while clients of its head are owed something.

Test only this room: `pytest tests/unit/cell`
"""
