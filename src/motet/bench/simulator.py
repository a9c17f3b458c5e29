"""How fast the simulator is, all checks included.

A step is one input of one machine, and both kinds are counted: brokers' and clients'. About
three in five are brokers'.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

from motet.bench.figures import Figure
from motet.testing.cluster import Cluster
from motet.testing.faults import DEFAULT_PROFILE, profile
from motet.testing.simulation import simulate

BROKERS = 5
SHORT_S = 4.0
LONG_S = 20.0


def measure(short: bool) -> Figure:
    """Whole runs of seeds whose overlay happens to have five brokers, on one core."""
    bound_s = SHORT_S if short else LONG_S
    steps, took_s = 0, 0.0
    for seed in _seeds():
        began = time.perf_counter()
        steps += simulate(seed, DEFAULT_PROFILE).steps
        took_s += time.perf_counter() - began
        if took_s > bound_s:
            break
    return Figure(
        f"simulator, {BROKERS} brokers, steps of brokers and clients",
        steps / took_s,
        "steps/s",
        None,
        20_000.0,
        "at least",
    )


def _seeds() -> Iterator[int]:
    for seed in count():
        if len(Cluster(seed, profile(DEFAULT_PROFILE)).brokers) == BROKERS:
            yield seed
