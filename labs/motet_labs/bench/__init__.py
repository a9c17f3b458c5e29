"""Benchmarks: figures that are printed beside their floors and their goals.

What lives here
    workload   the events, subscriptions and filters that benchmarks use
    floor      what the machine allows: a hop that does nothing, an echo, the disk
    load       clients and neighbours that load brokers, in processes of their own
    route      a broker's cost per hop, throughput, latency, memory; the simulator
    match      the matching engines alone
    journal    the cost of durability: control, recovery, snapshots; a neighbour that rejoins
    delivery   the cost of exactly-once delivery over best effort: rate, latency, CPU by role
    failover   how long subscribers wait when a cell loses a process
    logs       logs beside bare files, sealing, and late readers
    tx         transactions: latency beside its floor, throughput, growth, the dip of others
    mobility   clients that move: latency, pause and messages; what others notice; a drain
    movers     clients that move while they are measured, in processes of their own
    ordering   order across topics: timestamps of sites, latency, ordered over plain events
    sequencers clients that load sites with raw frames, and a site's machine in process
    services   publishers and subscribers of event services, plainly and ordered
    spark      Spark's source and sink beside no-op ones, which are in spark_sides
    audit      a large history judged by Spark, on one core and on two

May import: everything but `motet.cli`; of `motet.testing` only what it exports.

Must never: report a figure without the floor of the same run where there is one, run rounds of one
side without the other, or count a throughput with losses.

Invariants owned here
    - `motet bench … --json` prints {"results": [Figure], "machine": {…}}.
    - Both sides run in turn, in rounds of one run; the median is reported.

Test only this room: `pytest tests/integration/test_benchmarks.py tests/spark/test_bench.py`
"""
