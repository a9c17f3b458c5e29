"""Testing: whole overlays in virtual time, with faults, checked. Shipped to users.

    from motet.testing import simulate, run_seeds, tell_story

    result = simulate(7, "lossy")       # one seed of one fault profile
    assert not result.violations, result.complaints()

What lives here
    clock, transport, log, pubend   twins of the runtime modules of the same names, in virtual time
    brokers           the simulated drivers of real broker cores and of mates
    clients           the real client machine with a random application
    transactions      random transactions and the parts that applications play in them
    movers            clients that move, and operators that move them
    durable_clients   clients that outlive their processes; processes that end and start
    cluster           all of these on one agenda, with one random generator
    faults            the fault menu, and its random injection
    topology, workload   random trees, random clients, a small space of filters
    trace, words      every step as a hash or a story
    recorder, history   the record of a run, for the checkers and for the audit
    checkers/         one file per guarantee
    bugs/             deliberate bugs, each of which a checker must catch
    simulation        seeds, results, replay
    fixture           the pytest plugin
    scenario          races as text, with every message on the page

May import: everything but `motet.cli`, `motet.chaos`, `motet_labs` and `motet.spark`. Only the
first three of these import it.

Must never: read a wall clock, draw from any other source than the run's one generator, or let hash
or set order decide anything; weaken a checker to fit the protocol.

Invariants owned here
    1. One seed and one profile give one trace hash, in any process, under any hash seed.
    2. The twins obey the order of `contract.Output`, as the asyncio driver does.
    3. Every planted mutation is caught within a bounded number of seeds.

Test this room: `pytest tests/unit/testing tests/sim`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motet.testing.bugs import MUTATIONS
    from motet.testing.faults import DEFAULT_PROFILE, PROFILES, FaultMenu
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
    "MUTATIONS": "bugs",
    "PROFILES": "faults",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the pytest plugin is in this package and must cost nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = import_module(f"{__name__}.{_HOMES.get(name, 'simulation')}")
    return getattr(home, name)
