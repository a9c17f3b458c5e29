"""The demo: an overlay of three broker processes, an order workflow, and a broker that dies.

What lives here
    overlay   three brokers on free ports, started by `motet up` as anybody would
    cast      the clients of the story and what they publish and want
    account   what was published, who was owed it, who got it: the promises, counted
    story     the acts
    report    the counts as figures, for people and as JSON

May import: `motet.client`, `motet.model`, `motet.errors`, `motet.broker.topology`, and
`motet.bench.figures` for the shape of its results.

Must never: sleep and hope. It polls for what must come true, with a deadline, and a promise
that is not kept ends it with exit status 1.

Invariants owned here
    - Every event is checked at every subscriber: lost, doubled, misrouted, out of order.
    - What is lost while a broker is down is shown as such: best effort is not more than that.

Test only this room: `pytest tests/integration/test_demo.py`
"""
