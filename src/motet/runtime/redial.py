"""How long to wait before trying again."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.05
LAST_S: Final = 5.0


class Backoff:
    """Doubles up to a limit; half of each wait is chance, so that crowds come apart."""

    def __init__(
        self, first_s: float = FIRST_S, last_s: float = LAST_S, seed: int | None = None
    ) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._next_s = first_s
        self._random = random.Random(seed)

    def reset(self) -> None:
        self._next_s = self._first_s

    def wait_s(self) -> float:
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, self._last_s)
        return wait_s * self._random.uniform(0.5, 1.0)
