"""Two brokers and durable clients whose schedule a test plays itself."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from motet.model import Filter
from motet.testing import durable_clients
from motet.testing.brokers import SimulatedBroker
from motet.testing.bugs.catalogue import Patch, patched
from motet.testing.clients import SimulatedClient
from motet.testing.cluster import Cluster
from motet.testing.faults import profile
from motet.testing.history import History
from motet.testing.simulation import CHECKERS, _surroundings


def durable_pair() -> Cluster:
    """A calm overlay of two brokers, in which every client is durable."""
    menu = replace(profile("calm"), sure=True)
    needs = {"durable": 1.0, "keep_s": 60.0, "kept_events": None, "total_order": 0.0}
    clusters = (Cluster(seed, menu, needs=needs) for seed in range(100))
    return next(each for each in clusters if len(each.tree.brokers) == 2)


def play(cluster: Cluster, chaos: Callable[[], None], *, own_cursors: bool = False) -> None:
    """Run the overlay, with this schedule in place of random faults, and of random choices of the
    applications."""
    cluster.chaos = chaos  # type: ignore[method-assign]
    choices = [
        Patch(durable_clients, "CARELESS", 0.0),
        Patch(durable_clients, "OWN", float(own_cursors)),
    ]
    with patched([*_surroundings(cluster), *choices]):
        cluster.run()


def started_with_an_advertiser(
    cluster: Cluster, wanted: Filter
) -> tuple[SimulatedBroker, SimulatedClient]:
    """After one second: the first broker, and its first client, which advertises."""
    here = cluster.tree.brokers[0]
    for each in cluster.brokers.values():
        each.start(remember=False)
    client = cluster.arrive("", here)
    client.ask("advertise", wanted, wait=True, timeout_s=10.0)
    cluster.agenda.run(1.0)
    return cluster.brokers[here], client


def assert_clean(history: History) -> None:
    """No checker objects."""
    assert not history.oddities
    for checker in CHECKERS:
        verdict = checker.check(history)
        assert not verdict.violations, verdict.violations
