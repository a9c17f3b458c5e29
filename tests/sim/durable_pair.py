"""Two brokers and durable clients whose schedule a test plays itself."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from motet.testing.bugs.catalogue import patched
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


def play(cluster: Cluster, chaos: Callable[[], None]) -> None:
    """Run the overlay, with this schedule in place of random faults."""
    cluster.chaos = chaos  # type: ignore[method-assign]
    with patched(_surroundings(cluster)):
        cluster.run()


def assert_clean(history: History) -> None:
    """No checker objects."""
    assert not history.oddities
    for checker in CHECKERS:
        verdict = checker.check(history)
        assert not verdict.violations, verdict.violations
