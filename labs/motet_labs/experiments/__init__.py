"""Experiments: the measurements of the papers, repeated on Motet.

What lives here
    paper5         parameters and results of paper 5: topology, rates, times, figures
    faults         traffic at a fixed rate, the nacks it causes, and the three fault injections
    overhead       CPU and latency, best effort against exactly once, for many subscribers
    exactly_once   the whole experiment, part by part, and its report

    paper1         parameters and results of paper 1
    dispatch       its scenario, four ways; its clients and brokers; critical paths
    delay_proxy    links with a delay
    regular        a stream of regular events, and its rate beside all that
    transactions   the whole experiment, part by part, and its report

    paper3         parameters and words of paper 3: its overlay, its movers
    shapes         its workloads: subscriptions that cover each other, and events for them
    movers         subscribers that move in two ways, and account for their events
    rivals         overlays with and without covering, at the same time; what their brokers send
    movements      what was measured, as rows of a table
    mobility_plan, mobility, mobility_report   the whole experiment, part by part, and its report

    paper4         parameters and words of paper 4
    regions        its workload: who subscribes to what, and publishes what, in which region
    wide_links     links whose delays wander; site_line: sites behind them; region_load: clients
    virtual_line   the same sites, links and clients in virtual time
    stamp_sizes    sizes of timestamps, with Spark
    as_published   the algorithm of paper 4 as a model; our_schedules: the same done to ours
    ordering_plan, ordering, ordering_report   the whole experiment, part by part, and its report

    report         figures beside those of a paper, as JSON and as a page to read
    plots, mobility_plots, ordering_plots, axes   the same as pictures; need matplotlib

May import: everything but `motet.cli`.

Must never: report a figure of a run with lost or duplicate events as if it counted; restart a
broker that fails on its own; leave a process behind.

Invariants owned here
    - Best effort and exactly once are measured in turn, in the same overlay.
    - Every event is accounted for at every subscriber: lost, doubled, out of order.
    - A load on sites runs in virtual time, too, with the same events and the same delays of links.

Test only this room: `pytest tests/integration/test_experiment.py tests/unit/labs/experiments`
"""
