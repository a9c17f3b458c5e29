"""Transactions of several clients: all of their operations take effect, in one order, or none.

Lives here: `machine` (the facade of the room: composes the parts below, checks what clients may do
to the tables), `courier` (letters, questions and echoes; timers and other effects), `root` (makes
decisions; requests that need the root), `coordinator` (transactions that local clients began),
`participant` (what local clients do in transactions; invitations), `plans` (local parts of plans),
`decisions` (how decisions spread and settle), `cutter` (cuts of our pubend, and what isolated
transactions read); `state` by owner, and tables of legal moves; `messages`; `facts`; `durable`.
May import: `motet.model`, `motet.errors`, the messages and state of routing and sessions, timers.
Must never: read soft state; look at the clock; publish (a block goes to the log of its pubend).
Owns: a decision is made once, at the root, and takes effect everywhere or nowhere; a pubend cuts
once per transaction, in the order of the decisions; nothing of an undecided transaction is
delivered.
Test this room: `pytest tests/unit/transactions tests/paper/test_transactions_of_paper_1.py`
"""
