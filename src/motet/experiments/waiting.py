"""The wait of BL-WAIT: the shortest with which the update never went astray.

The paper starts at 2000 ms and goes in steps of 50 ms until 1000 transactions are right and 50 ms
less were not enough. We halve the interval instead, with fewer runs per step, down to a
millisecond; rounded up to the paper's steps it is what the paper would have found at the least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from motet.experiments.dispatch_stand import Scene

LONGEST_MS = 2000.0
STEP_MS = 50.0
"""The paper's."""


@dataclass(frozen=True)
class Wait:
    """`least_ms` was always right, `wrong_ms` was not."""

    least_ms: float
    wrong_ms: float
    runs: int
    """At every step of the search."""

    @property
    def as_in_paper_ms(self) -> float:
        return max(STEP_MS, math.ceil(self.least_ms / STEP_MS) * STEP_MS)


def find(scene: Scene, runs: int, casts: int = 1, threads: int = 1, exact_ms: float = 1.0) -> Wait:
    def is_right(wait_ms: float) -> bool:
        found = scene.load.ask(
            do="dispatch",
            approach="BL-WAIT",
            casts=casts,
            threads=threads,
            each=max(1, runs // casts),
            wait_s=wait_ms / 1e3,
            until_wrong=True,
        )
        return not found["wrong"]

    wrong_ms, right_ms = 0.0, 8.0
    while not is_right(right_ms):
        wrong_ms, right_ms = right_ms, right_ms * 2
        if right_ms > LONGEST_MS:
            right_ms = LONGEST_MS
            break
    while right_ms - wrong_ms > max(exact_ms, right_ms / 16):
        middle_ms = (right_ms + wrong_ms) / 2
        if is_right(middle_ms):
            right_ms = middle_ms
        else:
            wrong_ms = middle_ms
    return Wait(right_ms, wrong_ms, runs)
