"""A broker with many clients, and few open files that it may have."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.integration.durable_broker import MOTET, DurableBroker

FEW = 64


async def test_a_broker_takes_all_descriptors_that_it_may_have(tmp_path: Path) -> None:
    few = ("sh", "-c", f'ulimit -S -n {FEW}; exec "$0" "$@"', *MOTET)
    async with DurableBroker(tmp_path, command=few) as broker:
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    assert soft == hard > FEW
