"""Experiments: what the papers measured, measured again on Motet.

    from motet.experiments.exactly_once import Experiment, FULL

    report = await Experiment(FULL, directory).report()     # and motet.experiments.transactions

What lives here
    paper          what paper 5 used and found: topology, rates, times, figures
    overlay        the broker processes of an experiment; links whose failure is wanted go
                   through a proxy
    traffic        publishers at a fixed rate, subscribers that note every arrival
    nacks          which nacks passed where and when, as the brokers tell it
    faults         the three fault injections: link, broker, publisher's broker
    load           publishers and subscribers in processes of their own, for `overhead`
    overhead       CPU and latency, best effort against exactly once
    findings       what all that amounts to, beside what the paper says
    plots          the same as pictures; needs matplotlib
    page           the same as a page to read
    exactly_once   the whole experiment, part by part

    transactions   paper 1's evaluation: four approaches to its dispatching scenario
    tx_paper, tx_findings, tx_plots, tx_page   what the paper found, what we found; pictures, page
    dispatching    the scenario, four ways; dispatch_load: all its clients in one process
    regular        a stream of regular events, and its rate beside all that; regular_load: its ends
    dispatch_stand, delaying, echo   brokers and clients; links that take time; what one link takes
    critical_path  hops and fsyncs that a transaction waits for, from the protocol
    waiting        how long BL-WAIT must wait

May import: everything but `motet.cli`.

Must never: report a figure of a run that lost or doubled an event as if it counted; mend a
broker that fails by itself; leave a process behind.

Invariants owned here
    - Best effort and exactly once are measured in turn, in the same overlay.
    - Every event is accounted for at every subscriber: lost, doubled, out of order.

Test only this room: `pytest tests/integration/test_experiment.py tests/unit/experiments`
"""
