"""Randomness for rows: a hash of the seed, of what names the row, and of what it is for. So a row
is the same whichever task makes it, and two purposes of one row know nothing of each other."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

BITS: Final = 53
"""As many as a double has."""
START_US: Final = 1_767_225_600_000_000
"""When workloads begin, if nothing else is said: 2026-01-01."""


class Dice:
    def __init__(self, seed: int, *row: Column) -> None:
        self._seed = seed
        self._row = row

    def uniform(self, purpose: str, *more: Column) -> Column:
        """At least 0, below 1. `more` tells apart several throws for one purpose."""
        thrown = F.xxhash64(F.lit(self._seed), *self._row, *more, F.lit(purpose))
        return F.shiftrightunsigned(thrown, 64 - BITS).cast("double") * F.lit(2.0**-BITS)

    def below(self, count: int | Column, purpose: str, *more: Column) -> Column:
        """A number from 0 on, below `count`."""
        limit = F.lit(count) if isinstance(count, int) else count
        return F.floor(self.uniform(purpose, *more) * limit)

    def happens(self, chance: float, purpose: str, *more: Column) -> Column:
        return self.uniform(purpose, *more) < F.lit(chance)

    def exponential_ms(self, mean_ms: Column, purpose: str, *more: Column) -> Column:
        """A time to wait, in whole milliseconds: exact sums do not depend on their order."""
        return F.floor(-F.log(1.0 - self.uniform(purpose, *more)) * mean_ms)


def time_at_us(us: Column) -> Column:
    return F.timestamp_micros(us.cast("long"))
