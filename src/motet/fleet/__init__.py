"""Broker processes: started, watched and ended. The command line, chaos, the labs and the tests
use this room; no other room starts brokers as processes.

    from motet.broker.overlay.topology import Topology
    from motet.fleet.fleet import Fleet

    async with Fleet(Topology.line(3), directory) as fleet:
        fleet.processes["B2"].kill()

What lives here
    process       `BrokerProcess`: start, await readiness, pause, resume, stop, kill; its log;
                  free ports, CPU time and memory, killing all descendants
    fleet         `Fleet`: all processes of a topology, with proxies on chosen links; missing links
    servers       event services of others: NATS, Mosquitto and Redis, each on a free port
    supervisor    `Supervisor`: restarts with backoff, rolling restarts, changes of the topology
    proxy         `LinkProxy`: cuts, stalls and heals one link
    run_folder    the lock and the state of a supervised overlay, and what commands want of it; the
                  remains of a failed start
    convoy        many clients that move at once
    drain         all clients of a broker move away, and its log is read out
    balance       clients move until all brokers have about as many
    spread        which clients go where, in numbers
    restart       a rolling restart in which each broker is drained before

May import: `motet.errors`, `motet.runtime`, `motet.client`, and the
configuration, folders and topologies of `motet.broker`.

Must never: print; leave a process running; fail a start because the machine is busy.

Invariants owned here
    1. A broker process ends when the process that started it ends, even if that one is killed and
       even if the broker is paused.
    2. `BrokerProcess.expected` is true if and only if we have ended the process.
    3. A rejected change of the topology leaves every broker as it was.

Test only this room: `pytest tests/unit/fleet tests/integration/test_overlay_changes.py
tests/integration/test_operators.py`
"""
