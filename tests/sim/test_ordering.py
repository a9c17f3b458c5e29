"""Order across topics in virtual time: nothing is violated, and plenty happens."""

from __future__ import annotations

from functools import cache

import pytest

from motet.errors import MisuseError
from motet.testing.bugs import MUTATIONS
from motet.testing.ordering.simulation import GUARANTEES
from motet.testing.simulation import Result, catch, crash_everywhere, run_seeds, simulate

SEEDS = range(5024, 5036)
PLANTED = [name for name, bug in MUTATIONS.items() if bug.profile == "ordering"]


@cache
def handful() -> Result:
    return run_seeds(SEEDS, "ordering")


def test_a_handful_of_seeds() -> None:
    result = handful()
    assert not result.violations, "\n".join(result.complaints())
    for guarantee in GUARANTEES:
        assert result.checked[guarantee] >= len(SEEDS), guarantee


def test_enough_happens_in_them() -> None:
    result, seeds = handful(), len(SEEDS)
    happened, faults = result.ordering, result.faults
    assert happened["delivered"] > 200 * seeds, happened
    assert happened["receipts"] > 60 * seeds, happened
    assert happened["changes"] > 20 * seeds, happened
    assert happened["replies"] > 20 * seeds, happened
    for rare in ("gaps", "late", "lost", "publication: Voided"):
        assert happened[rare], (rare, happened)
    for common in ("kill", "kill_publisher", "pause_publisher", "drop_client", "message_doubling"):
        assert faults[common] >= seeds // 2, (common, faults)
    for fault in ("disk_failure", "snapshot", "message_loss", "site_clock", "client_clock"):
        assert faults[fault], (fault, faults)


def test_sites_fail_over_in_them() -> None:
    happened, faults = handful().ordering, handful().faults
    for change in ("leads in", "goes on without", "has a standby", "waits for its standby"):
        assert happened[f"replica {change}"] > 2, (change, happened)
    for fault in ("part", "pause_primary", "fresh_standby", "slow_disk"):
        assert faults[fault], (fault, faults)


@pytest.mark.parametrize("seed", [41000021, 41000485])
def test_a_deposed_primary_harms_nobody(seed: int) -> None:
    """Answers waited on a connection that a newer one had replaced; a deposed neighbour connected,
    and lacked what its successor had taken."""
    result = simulate(seed, "ordering")
    assert not result.violations, "\n".join(result.complaints())


@pytest.mark.parametrize("mutation", PLANTED)
def test_each_planted_bug_is_caught(mutation: str) -> None:
    caught = catch(mutation)
    assert caught.caught, MUTATIONS[mutation].story
    assert set(caught.guarantees) & set(MUTATIONS[mutation].breaks), caught


def test_without_faults_nothing_is_lost_late_or_void() -> None:
    for seed in range(3):
        result = simulate(seed, "ordering", crash_at=0)
        assert not result.violations
        assert not result.ordering.keys() & {"gaps", "late", "lost", "publication: Voided"}
        assert result.ordering["delivered"] > 20


def test_a_crash_at_every_step() -> None:
    result = crash_everywhere(4, "ordering", stride=11)
    assert not result.violations, "\n".join(result.complaints())
    assert result.faults["kill"] == result.seeds > 10
    assert result.checked["replay"] > result.seeds


@pytest.mark.parametrize("seed", [1, 5])  # without a witness, and with one
def test_a_crash_of_a_replica_or_witness_at_every_step(seed: int) -> None:
    result = crash_everywhere(seed, "ordering", stride=13)
    assert not result.violations, "\n".join(result.complaints())
    assert result.faults["kill"] == result.seeds > 10
    assert result.ordering["replica has a standby"] > result.seeds // 2


def test_other_faults_at_a_step_are_refused_by_name() -> None:
    with pytest.raises(MisuseError, match="only kill"):
        simulate(1, "ordering", crash_at=3, fault="cut")


def test_a_seed_gives_one_run_and_telling_it_changes_nothing() -> None:
    told = simulate(3, "ordering", story=True)
    assert told.trace_hash == simulate(3, "ordering").trace_hash
    assert any("gets t" in line for line in told.story)


@pytest.mark.soak
def test_many_seeds_of_ordering() -> None:
    result = run_seeds(range(6000, 7000), "ordering", processes=2)
    assert not result.violations, "\n".join(result.complaints())
