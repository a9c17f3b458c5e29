"""Exactly-once delivery: streams of ticks, filtered at every hop, gapless at the edge.

Lives here: `spans` (knowledge of ticks, and a bounded memory of it), `messages` (frames),
`interest` (the routing tables, as delivery sees them), `stream` (the state of one pubend's stream:
requests, neighbours, limits, effects), `subend` (the clients of one pubend, each with its
position), `clients` (each client in all pubends), `total_order` (merges), `blocks` (transactions
with events of several pubends), `gates` (publishers that have moved), `neighbours` (knowledge,
nacks and acknowledgements), `machine` (all streams of one broker, and their entry points), `pubend`
(publications until they are logged, and entries kept until events have arrived), `soft`, `durable`
and `facts` (the room).
May import: `motet.model`, `motet.errors`, the contract of timers, publications; `soft` and
`durable` also the state of other protocols.
Must never: appear in a journaled fact; look into the body of a publication; delay knowledge
because of a gap before it (only clients wait); report a forgotten tick as silence.
Owns: all state of the machine is soft. A machine may be emptied at any moment; missing ticks are
requested again, and the pubend's log is the only source. Per client: tick order, no duplicates, no
gap that is not reported as loss. Memory is bounded, however long a stream is.
Test this room: `pytest tests/unit/delivery tests/paper/test_delivery_of_paper_5.py`
"""
