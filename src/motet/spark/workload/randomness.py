"""Randomness for rows: a hash of the seed, the row's key, and the purpose. So a row is the same
whichever task makes it, and different purposes of one row are independent.

A power law over ranks chooses a few topics most of the time. The paper on total notification order
names two, by the share of topics that gets 80 % of all choices: 0.5 % (shape 0.901: every region
has its favourites) and 40 % (shape 0.349: popularity spreads). It does not say how a shape becomes
a distribution. As a Pareto distribution of ranks, 0.901 gives the first share, but 0.349 gives 10 %
and not 40 %. The paper's figures rest on the shares, so these are met here, by solving for the
exponent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from pyspark.sql import Column
from pyspark.sql import functions as F

from motet.errors import MisuseError

if TYPE_CHECKING:
    from pyspark.sql import Column


# ── dice ─────────────────────────────────────────────────────────────────────────────────

BITS: Final = 53
"""The precision of a double."""
START_US: Final = 1_767_225_600_000_000
"""When workloads begin by default: 2026-01-01."""


class Dice:
    def __init__(self, seed: int, *row: Column) -> None:
        self._seed = seed
        self._row = row

    def uniform(self, purpose: str, *more: Column) -> Column:
        """At least 0, below 1. `more` distinguishes several throws for one purpose."""
        thrown = F.xxhash64(F.lit(self._seed), *self._row, *more, F.lit(purpose))
        return F.shiftrightunsigned(thrown, 64 - BITS).cast("double") * F.lit(2.0**-BITS)

    def below(self, count: int | Column, purpose: str, *more: Column) -> Column:
        """An integer from 0 to `count` - 1."""
        limit = F.lit(count) if isinstance(count, int) else count
        return F.floor(self.uniform(purpose, *more) * limit)

    def happens(self, chance: float, purpose: str, *more: Column) -> Column:
        return self.uniform(purpose, *more) < F.lit(chance)

    def exponential_ms(self, mean_ms: Column, purpose: str, *more: Column) -> Column:
        """A waiting time in whole milliseconds: exact sums do not depend on their order."""
        return F.floor(-F.log(1.0 - self.uniform(purpose, *more)) * mean_ms)


def time_at_us(us: Column) -> Column:
    return F.timestamp_micros(us.cast("long"))


# ── power laws ───────────────────────────────────────────────────────────────────────────

MASS: Final = 0.8
"""The share of all choices that favourites get."""
MODELS: Final = {"geographic": 0.005, "spray": 0.4}
"""The share of topics that are favourites: of shape 0.901 and of shape 0.349."""
STEEPEST: Final = 40.0
FLAT: Final = 1e-9


class PowerLaw(Struct, frozen=True):
    """Rank r, from 1 to `ranks`, has the probability that x**-exponent has between r and r + 1."""

    ranks: int
    exponent: float

    def mass(self, first: int) -> float:
        """The probability of the first ranks together."""
        return self._area(first) / self._area(self.ranks)

    def _area(self, ranks: int) -> float:
        rise = 1.0 - self.exponent
        return math.log1p(ranks) if abs(rise) < FLAT else ((ranks + 1) ** rise - 1.0) / rise

    def rank(self, uniform: Column) -> Column:
        """The rank that a number from 0 to 1 chooses."""
        from pyspark.sql import functions as F

        rise = 1.0 - self.exponent
        if abs(rise) < FLAT:
            place = F.exp(uniform * math.log1p(self.ranks))
        else:
            whole = (self.ranks + 1) ** rise - 1.0
            place = F.pow(uniform * F.lit(whole) + 1.0, F.lit(1.0 / rise))
        return F.least(F.floor(place), F.lit(self.ranks)).cast("long")


def fitting(ranks: int, share: float, mass: float = MASS) -> PowerLaw:
    """The law by which this share of all ranks, rounded up, gets this share of all choices."""
    first = math.ceil(ranks * share)
    if not 0 < first < ranks:
        raise MisuseError(f"{ranks} topics are too few to favour {share:.1%} of them; use more")
    flat, steep = 0.0, STEEPEST
    if PowerLaw(ranks, flat).mass(first) > mass:
        raise MisuseError(f"{share:.1%} of the topics are too many to get {mass:.0%} of choices")
    for _ in range(200):
        middle = (flat + steep) / 2
        if PowerLaw(ranks, middle).mass(first) < mass:
            flat = middle
        else:
            steep = middle
    return PowerLaw(ranks, (flat + steep) / 2)


def model(name: str, topics: int) -> PowerLaw:
    if name not in MODELS:
        raise MisuseError(f"unknown popularity {name!r}; choose from {', '.join(MODELS)}")
    return fitting(topics, MODELS[name])
