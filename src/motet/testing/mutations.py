"""Deliberate bugs: each one must be caught by a checker, or the checkers are not worth much.

A mutation is a named set of patches that hold while one cluster runs. It says which fault
profile brings it to light and which guarantees it may break; that it is caught, within how many
seeds, is a test. A mutation that slips through asks for a better workload or a better checker,
never for another mutation. The bugs themselves are in `bugs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from motet.errors import MisuseError
from motet.testing.bugs import (
    cells,
    delivery,
    durability,
    durables,
    links,
    publications,
    routing,
    sessions,
    total_order,
    transactions,
)
from motet.testing.bugs.catalogue import BUGS, Mutation
from motet.testing.patches import patched

ROOMS = (
    routing,
    links,
    sessions,
    publications,
    durability,
    delivery,
    cells,
    durables,
    total_order,
    transactions,
)
"""Bugs enter the catalogue when their module is imported."""
MUTATIONS: dict[str, Mutation] = BUGS


@contextmanager
def planted(name: str) -> Iterator[Mutation]:
    """While this holds, every core in this process has the bug."""
    chosen = MUTATIONS.get(name)
    if chosen is None:
        raise MisuseError(f"no mutation is called {name!r}; there are {', '.join(MUTATIONS)}")
    with patched(chosen.patches()):
        yield chosen
