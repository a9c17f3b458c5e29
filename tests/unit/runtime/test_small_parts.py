"""Back-off, rates, addresses, the loop, the journal that keeps nothing, the floors."""

from __future__ import annotations

import asyncio

import pytest

from motet.broker.driver.contact import TrafficCounters
from motet.broker.driver.driver import VolatileJournal
from motet.errors import AddressError
from motet.protocol.contract import Fact
from motet.runtime.addresses import transport_for
from motet.runtime.clock import SteadyClock
from motet.runtime.inproc import InprocTransport
from motet.runtime.loop import loop_name, run
from motet.runtime.redial import Backoff
from motet.runtime.tcp import TcpTransport
from motet_labs.bench.floor import passthrough


def test_backoff_doubles_to_a_limit_with_chance_and_starts_again() -> None:
    backoff = Backoff(0.1, 1.0, seed=1)
    waits = [backoff.wait_s() for _ in range(8)]
    for wait_s, most_s in zip(waits, [0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1], strict=True):
        assert most_s / 2 <= wait_s <= most_s
    assert len(set(waits)) == 8
    backoff.reset()
    assert backoff.wait_s() <= 0.1


def test_rates_look_back_on_the_last_samples() -> None:
    traffic = TrafficCounters()
    assert traffic.rates(5.0)["events_in_per_s"] == 0
    for second in range(100):
        traffic.sample(float(second))
        traffic.events_in += 10 if second < 50 else 1000
    assert traffic.rates(100.0)["events_in_per_s"] == 1000
    assert traffic.totals()["events_in"] == 50 * 10 + 50 * 1000


def test_the_scheme_chooses_the_transport() -> None:
    assert isinstance(transport_for("motet://h:1"), TcpTransport)
    assert isinstance(transport_for("inproc://x"), InprocTransport)
    for bad in ("http://x", "x", "", "motet"):
        with pytest.raises(AddressError, match="motet://, inproc://"):
            transport_for(bad)


def test_the_clock_never_runs_backwards() -> None:
    clock = SteadyClock()
    times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_a_volatile_journal_is_durable_at_once_and_keeps_nothing() -> None:
    journal = VolatileJournal()
    fact = Fact(1.0, "x")
    assert journal.append([fact, fact]) == journal.durable == journal.appended == 2
    assert journal.append([fact]) == 3
    assert fact not in vars(journal).values()


def test_run_uses_the_best_loop_there_is() -> None:
    async def name() -> str:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    assert run(name()) == loop_name()


@pytest.mark.parametrize("kind", ["bare", "motet"])
def test_the_floor_of_a_hop(kind: str) -> None:
    figures = passthrough(0.1, kind)
    assert 0 < figures.cpu_us_per_event < 100
    assert figures.events_per_s > 1000
