"""Chaos: a real overlay of processes under traffic and injected faults, judged by the checkers.

    from motet.chaos.plan import ChaosPlan
    from motet.chaos.run import ChaosRun

    report = await ChaosRun(ChaosPlan(brokers=5, seconds=60, seed=7), directory).report()
    assert report.kept, report.violations

What lives here
    plan          the overlay, the traffic and every fault, drawn from a seed beforehand
    witness       records each client, as the simulator records its own
    traffic       the clients: real ones with random actions, on connections that chaos can break
    hands         the traffic of transactions: live streams handed over between subscribers
    movers        clients that move, and where faults that are aimed at them hit
    absentees     durable clients that an operator moves while they are away
    stays         where sessions were, as the brokers have recorded it
    storm         carries out the planned faults, and repairs each after its time
    lookout       polls broker health and closes fault intervals once a place has recovered
    chronicle     the history that the simulator's checkers read, and the story of the run
    judgement     checks the folders of the stopped brokers; all checkers, one report
    run           the stages, from start to judgement
    cast, ordering   the profile `ordering`: sites, clients and NATS as processes, and its faults
    member        a client process of that profile, with a diary
    memoirs       the history of order across topics, from diaries

May import: everything except `motet.cli`. Of `motet.testing` it uses the history, the checkers and
the workload.

Must never: excuse a violation without a recorded fault; close the fault interval of a place before
it was seen to be well; change how a client or a broker behaves; leave a process behind.

Invariants owned here
    1. A fault is in the history before it happens, and its end after the end was observed.
    2. The checkers are those of the simulator, unchanged.
    3. A run that kills brokers without durable state (`volatile`) is reported as a violation.

Test this room: `pytest tests/unit/chaos tests/integration/test_chaos.py`
"""
