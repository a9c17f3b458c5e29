"""Transactions of several clients: all of their operations take effect, in one order, or none.

Lives here: `messages` (what brokers say), `state` (what each keeps), `effects` (what follows, and
where everybody is), `cutting` (versions of the tables, cuts of our pubend), `concluding` (what
clients of ours hear in the end), `participating` (what they ask for), `inviting` (whom they
invite), `following` (their parts of a plan), `collecting` (their coordinators), `spreading` (how
questions and decisions travel), `deciding` (the root), `machine` (the doors, tables of moves). Each
class of the machine builds on those before it.
May import: `motet.model`, `motet.errors`, the messages and state of routing and sessions, timers.
Must never: read soft state; look at the clock; publish (a block goes to the log of its pubend).
Owns: a decision is made once, at the root, and takes effect everywhere or nowhere; a pubend cuts
once per transaction, in the order of the decisions; nothing of an undecided transaction is
delivered.
Test this room: `pytest tests/unit/transactions tests/paper/test_transactions_of_paper_1.py`
"""
