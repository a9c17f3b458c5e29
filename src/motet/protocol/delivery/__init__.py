"""Exactly-once delivery: streams of ticks, filtered at every hop, gapless at the edge.

Lives here: `ranges` and `spans` (what is known of which ticks), `messages` (frames), `interest`
(what the broker tells us about its filters), `memory` (recent spans, bounded), `curiosity` (what
is asked for, and when again), `outstream` (one per pubend and neighbour), `position` and `subend`
(one client, and all clients, in one pubend), `merge` (total order), `cuts` and `together` (where
transactions are, and blocks of several pubends that are released as one), `state` (all that
belongs to one pubend, limits, effects), `relay` (spans on their way down), `asking` and
`acknowledging` (what travels up), `reader`, `giving` and `clients` (who is here, in all pubends,
and is given what), `tally` (what has passed, for those who look in), `machine` (the doors).
May import: `motet.model`, `motet.errors`, the contract of timers, publications.
Must never: appear in a journaled fact; look into the body of a publication; delay knowledge
because of a gap before it (only clients wait); say that a tick is empty because it was forgotten.
Owns: all state here is soft. A machine may be emptied at any moment; what is missing is asked for
again, and the pubend's log is the only source. Per client: tick order, nothing twice, no gap that
is not reported as loss. Memory is bounded whatever the length of a stream.
Test this room: `pytest tests/unit/delivery tests/paper/test_delivery_of_paper_5.py`
"""
