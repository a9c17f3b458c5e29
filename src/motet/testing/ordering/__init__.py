"""Ordering in virtual time: twins of sites, clients and an event service, with faults, checked.

    motet sim --profile ordering

What lives here
    history      what publishers, streams and sites did, for the checkers
    checkers/    one file per guarantee, written against the history only
    recorder     writes the history from the frames between clients and sites
    sites        the simulated driver of replicas of sites, and of their witness, with real cores
                 and a journal that may lose its end
    service      an event service that delays, reorders, doubles, and loses if it may
    clients, applications   the real machine of a client, and what its application does
    plan, mishaps   how large a run is, which faults it has, and their injection
    world        all of these on one agenda, with one random generator
    schedules    short runs by hand, one for each part of the rule
    simulation   one run with all checkers on its history

May import: everything but `motet.cli`, `motet.chaos`, `motet_labs` and `motet.spark`. Only
`motet.testing` imports it.

Must never: read a wall clock, draw from any other source than the run's one generator, or let hash
or set order decide anything; weaken a checker to fit the protocol.

Test this room: `pytest tests/sim/test_ordering.py tests/unit/testing`
"""
