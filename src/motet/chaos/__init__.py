"""Chaos: a real overlay of processes under traffic, broken on purpose, judged by the checkers.

    from motet.chaos.plan import Plan
    from motet.chaos.run import Run

    report = await Run(Plan(brokers=5, seconds=60, seed=7), directory).report()
    assert report.kept, report.violations

What lives here
    plan          the overlay, the traffic and every fault, drawn from a seed beforehand
    fleet         the broker processes: killed, paused, stopped, started again
    proxy         the links' way through our hands: cut, stalled, healed
    witness       the client's machine with someone beside it who writes everything down
    application   one client: the real one, on a connection that we can break
    traffic       what all clients do, by chance
    hands         the traffic of transactions: live streams that go from hand to hand
    storm         faults as planned, each mended after its time
    lookout       asks the brokers how they are, and closes the books of those who are well
    chronicle     the history that the simulator's checkers read, and the story of the run
    autopsy       what the folders of the stopped brokers hold
    judgement     all checkers, one report
    run           the stages, from start to judgement

May import: everything but `motet.cli`. Of `motet.testing` it uses the history, the checkers and
the workload.

Must never: excuse what the chronicle does not show to have been broken; close the book of a
place before it was seen to be well; change how a client or a broker behaves; leave a process
behind.

Invariants owned here
    1. A fault is in the history before it happens, and its end after the end was seen.
    2. The checkers are those of the simulator, unchanged.
    3. Brokers that keep nothing (`volatile`) and are killed are found out.

Test this room: `pytest tests/unit/chaos tests/integration/test_chaos.py`
"""
