"""Seeds that once found a bug. Each was fixed; each stays here with a line on what it was.

A seed means another run when the workload changes. That is why each of these bugs also lives on
as a mutation, where a checker must find it again.
"""

from __future__ import annotations

import pytest

from motet.testing.simulation import simulate

PINNED = [
    # A link that still looked up, because nobody had noticed that its connection was dead, was
    # not resumed when the neighbour said hello on a new one: control was numbered wrongly from
    # then on ("acknowledged what was never sent"), or a new incarnation was refused for ever.
    ("lossy", 3),
    ("crash", 5),
    ("mixed", 4),
    # A publication that was refused, and whose refusal was lost with the connection, was told to
    # the resuming client as accepted.
    ("clients", 0),
    ("clients", 31),
]


@pytest.mark.parametrize(("profile", "seed"), PINNED)
def test_fixed_for_good(profile: str, seed: int) -> None:
    result = simulate(seed, profile)
    assert not result.violations, "\n".join(result.complaints())
