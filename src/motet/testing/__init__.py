"""Testing: whole overlays in virtual time, with faults, checked. Shipped to users.

    from motet.testing import simulate, run_seeds, tell_story

    result = simulate(7, "lossy")       # one seed of one fault profile
    assert not result.violations, result.complaints()

What lives here
    clock, transport, log        twins of the runtime pieces of the same names, in virtual time
    brokers, clients             the real core and the real client machine, carried out there
    arrivals, recording          what clients write down of what comes, and of what they send
    dealers, dealing             what applications do in transactions, and who begins which
    deals, transacting           what they know of each, and how that is written down
    durables, lasting            clients that outlive their processes, and how those come and go
    cluster                      all of them on one agenda with one source of chance
    faults, mishaps              the menu of what may go wrong, and what draws from it
    topology, workload           random trees, random clients, a small space of filters
    trace, history               every step as a hash or a story; what clients saw
    histories                    the same as tables, for the audit in Spark
    checkers/                    one file per guarantee
    mutations, bugs              deliberate bugs, each of which a checker must catch
    simulation                   seeds, results, replay
    fixture                      the pytest plugin
    scenario, tx_verbs, words    races as text, with every message on the page

May import: everything but `motet.cli`, `motet.bench` and `motet.demo`. Nothing imports it but
those.

Must never: read a wall clock, draw from any other source than the run's one generator, or let
hash or set order decide anything; make a checker weaker because the protocol is.

Invariants owned here
    1. One seed and one profile give one trace hash, in any process, under any hash seed.
    2. The twins obey the order of `contract.Output`, as the asyncio driver does.
    3. Every planted mutation is caught within a bounded number of seeds.

Test this room: `pytest tests/unit/testing tests/sim`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motet.testing.faults import DEFAULT_PROFILE, PROFILES, FaultMenu
    from motet.testing.mutations import MUTATIONS
    from motet.testing.simulation import (
        Catch,
        Result,
        Violation,
        catch,
        catch_all,
        run_seeds,
        simulate,
        tell_story,
    )

__all__ = [
    "DEFAULT_PROFILE",
    "MUTATIONS",
    "PROFILES",
    "Catch",
    "FaultMenu",
    "Result",
    "Violation",
    "catch",
    "catch_all",
    "run_seeds",
    "simulate",
    "tell_story",
]

_HOMES = {
    "DEFAULT_PROFILE": "faults",
    "FaultMenu": "faults",
    "MUTATIONS": "mutations",
    "PROFILES": "faults",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the pytest plugin lives in this package and must cost nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = import_module(f"{__name__}.{_HOMES.get(name, 'simulation')}")
    return getattr(home, name)
