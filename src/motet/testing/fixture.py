"""The pytest plugin: an overlay in this process, and the simulator, as fixtures.

Installed with Motet, so every pytest run imports it: no expensive imports at module level.

    async def test_orders(motet_overlay):
        async with motet_overlay(brokers=3) as overlay:
            async with overlay.connect("shop", broker="B1") as shop:
                ...

    def test_my_change(motet_simulation):
        motet_simulation(seeds=range(20), profile="crash")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from motet.testing.simulation import Result


@pytest.fixture
def motet_overlay() -> Callable[..., Any]:
    """`motet.local`: call it with its arguments, and enter the result."""
    import motet

    return motet.local


@pytest.fixture
def motet_simulation() -> Callable[..., Result]:
    """Run seeds of a fault profile; fails with each violation and the command that replays it."""
    from motet.testing.simulation import run_seeds

    def run(seeds: Iterable[int] = range(10), profile: str = "", *, processes: int = 1) -> Result:
        from motet.testing.faults import DEFAULT_PROFILE

        result = run_seeds(seeds, profile or DEFAULT_PROFILE, processes=processes)
        if result.violations:
            pytest.fail("\n".join(result.complaints()), pytrace=False)
        return result

    return run
