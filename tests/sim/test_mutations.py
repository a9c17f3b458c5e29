"""Every deliberate bug is caught, by a guarantee that it breaks, within a few seeds."""

from __future__ import annotations

import pytest

from motet.testing.mutations import MUTATIONS, planted
from motet.testing.simulation import GUARANTEES, catch, simulate

MOST_SEEDS = 40
MISFITS = {"TypeError", "AttributeError", "NameError"}
"""A core that breaks on these shows that a bug was written for other code, and nothing else."""


HARD_TO_CATCH = {
    "a-cut-that-waits-is-overtaken",
    "a-head-keeps-acknowledgements-to-itself",
    "a-late-withdrawal-counts",
    "advertisements-do-not-retire",
    "all-begins-at-the-cut",
    "anybody-ends-a-durable-session",
    "copies-do-not-know-that-they-have-ended",
    "gaps-are-ignored",
    "merges-go-on-while-a-pubend-begins",
    "nobody-looks-at-what-was-read",
    "publications-are-counted-from-what-was-answered",
    "publications-go-back",
    "refusals-are-lost-with-the-connection",
    "silence-is-believed-of-strangers",
    "silence-is-forgotten-in-a-crash",
    "snapshot-keeps-no-outbox",
    "starts-are-not-tentative",
    "starts-stay-when-their-advertisement-goes",
    "the-head-of-a-cell-answers-without-waiting-for-its-mates",
    "the-old-side-leaves-at-the-cut",
    "the-order-of-a-block-is-ignored",
    "timeout-blames-an-innocent",
    "what-clashes-is-decided-meanwhile",
}
"""These take some seconds each, or many seeds."""
ONE_IN = 3
"""So many of the others are enough here: `make soak` and `motet sim` look for all of them."""
SAMPLE = [name for name in MUTATIONS if name not in HARD_TO_CATCH][::ONE_IN]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.soak) for name in MUTATIONS],
)
def test_caught(name: str) -> None:
    caught = catch(name, MOST_SEEDS)
    assert caught.caught, f"{MUTATIONS[name].story} Nobody objected in {MOST_SEEDS} seeds."
    assert set(caught.guarantees) & set(MUTATIONS[name].breaks), caught
    assert not MISFITS & set(caught.detail.replace(":", " ").split()), "it does not fit the code"


def test_the_catalogue_is_well_described() -> None:
    assert len(MUTATIONS) >= 14
    assert set(MUTATIONS) > HARD_TO_CATCH
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
