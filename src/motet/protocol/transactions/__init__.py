"""Transactions of several clients: all of their operations take effect, in one order, or none.

Lives here: `messages` (what brokers say), `state` (what each keeps), `effects` (what follows, and
where everybody is), `concluding` (what clients of ours hear in the end),
`participating` (what they ask for), `inviting` (whom they invite), `following`
(their parts of a plan), `collecting` (their coordinators), `deciding` (the root), `cutting`
(versions of the tables, cuts of our pubend), `machine` (the doors, tables of moves).
May import: `motet.model`, `motet.errors`, the messages and state of routing and sessions, timers.
Must never: read soft state; look at the clock; publish (a block goes to the log of its pubend).
Owns: a decision is made once, at the root, and takes effect everywhere or nowhere; a pubend cuts
once per transaction, in the order of the decisions; nothing of an undecided transaction is
delivered.
Test this room: `pytest tests/unit/transactions tests/paper/test_transactions_of_paper_1.py`
"""
