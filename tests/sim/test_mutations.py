"""Every deliberate bug is caught, by a guarantee that it breaks, within a few seeds."""

from __future__ import annotations

import pytest

from motet.testing.bugs.catalogue import MUTATIONS, planted
from motet.testing.simulation import GUARANTEES, catch, simulate

MOST_SEEDS = 40
MISFITS = {"TypeError", "AttributeError", "NameError"}
"""A core that breaks on these shows that a bug was written for other code, and nothing else."""


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_each_mutation_is_caught(name: str) -> None:
    caught = catch(name, MOST_SEEDS)
    assert caught.caught, f"{MUTATIONS[name].story} Nobody objected in {MOST_SEEDS} seeds."
    assert set(caught.guarantees) & set(MUTATIONS[name].breaks), caught
    assert not MISFITS & set(caught.detail.replace(":", " ").split()), "it does not fit the code"


def test_the_catalogue_is_well_described() -> None:
    assert len(MUTATIONS) >= 14
    for mutation in MUTATIONS.values():
        assert mutation.story
        assert mutation.breaks
        assert set(mutation.breaks) <= set(GUARANTEES)


def test_a_bug_is_gone_when_its_run_is_over() -> None:
    before = simulate(1000, "calm")
    with planted("attract-nothing"):
        assert simulate(1000, "calm").violations
    after = simulate(1000, "calm")
    assert (after.trace_hash, after.violations) == (before.trace_hash, ())
