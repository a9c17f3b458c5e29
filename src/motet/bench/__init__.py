"""Benchmarks: figures that are printed beside their floors and their goals.

What lives here
    figures    `Figure`, the one shape of every result; the machine it was measured on
    floor      what the machine allows: the hop that does nothing, the bare echo
    sample     the event of 142 bytes and the subscriptions that the route benchmarks use
    stand      a broker process to be measured, and its CPU time
    load       publishers and subscribers, in processes of their own
    crowd      neighbours with many subscriptions, as a broker sees them
    route      a broker's cost per hop, throughput and latency over real sockets
    memory     how large a broker with very many subscriptions is
    journal    what durability costs; with churn (clients that subscribe and unsubscribe),
               settling (one operation after the other), comeback (folders filled and opened)
    delivery   what exactly-once delivery costs beside best effort: rate, latency, CPU by role
    rejoin     what it costs when a neighbour joins anew
    tx         transactions: latency beside its floor, throughput, growth, the dip of others
    workload, match   the matching engines alone
    log        the log against a bare file
    spark      Spark's source and sink beside some that do nothing, which are in spark_sides
    audit      a large history judged by Spark, on one core and on two
    pubend, reading   the log of exactly-once events; and late readers of it, over TCP

May import: everything but `motet.cli`; of `motet.testing` only what it exports.

Must never: report a figure without the floor of the same run where there is one, mix rounds of
one side with none of the other, or count a throughput with losses.

Invariants owned here
    - `motet bench … --json` prints {"results": [Figure], "machine": {…}}.
    - Both sides run in turn, in rounds of one run; what is reported is the median.

Test only this room: `motet bench all --short`
"""
