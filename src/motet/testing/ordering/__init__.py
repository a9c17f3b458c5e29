"""Ordering in virtual time: twins of sites, clients and an event service, with faults, checked.

    motet sim --profile ordering

What lives here
    history      what publishers, streams and sites did, for the checkers
    checkers/    one file per guarantee, written against the history only
    network      links between sites, and connections of clients; all of them may break
    sites        the simulated driver of real site cores, with a journal that may lose its end
    service      an event service that delays, reorders, doubles, and loses if it may
    clients      the real machine of a client, with a random application
    plan         how large a run is, and which faults it has
    world        all of these on one agenda, with one random generator
    simulation   seeds, results, stories, a crash at every step

May import: everything but `motet.cli`, `motet.chaos`, `motet_labs` and `motet.spark`. Only
`motet.testing` imports it.

Must never: read a wall clock, draw from any other source than the run's one generator, or let hash
or set order decide anything; weaken a checker to fit the protocol.

Test this room: `pytest tests/sim/test_ordering.py tests/unit/testing`
"""
