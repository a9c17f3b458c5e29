"""Power laws over ranks: a few are chosen most of the time.

The paper on total notification order names two, by the share of topics that gets 80 % of all
choices: 0.5 % (shape 0.901: every region has its favourites) and 40 % (shape 0.349: what is liked
spreads). It does not say how a shape becomes a distribution. As a Pareto distribution of ranks,
0.901 gives the first share, but 0.349 gives 10 % and not 40 %. The shares are what its figures
rest on, so they are what is met here, by solving for the exponent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from motet.errors import MisuseError

if TYPE_CHECKING:
    from pyspark.sql import Column

MASS: Final = 0.8
"""What the favourites get of all choices."""
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
    """The law by which this share of all ranks, rounded up, gets this much of all choices."""
    first = math.ceil(ranks * share)
    if not 0 < first < ranks:
        raise MisuseError(f"{ranks} topics are too few for favourites that are {share:.1%} of them")
    flat, steep = 0.0, STEEPEST
    if PowerLaw(ranks, flat).mass(first) > mass:
        raise MisuseError(f"{share:.1%} of the topics have more than {mass:.0%} without favour")
    for _ in range(200):
        middle = (flat + steep) / 2
        if PowerLaw(ranks, middle).mass(first) < mass:
            flat = middle
        else:
            steep = middle
    return PowerLaw(ranks, (flat + steep) / 2)


def model(name: str, topics: int) -> PowerLaw:
    if name not in MODELS:
        raise MisuseError(f"{name!r} is no model of popularity; there are {', '.join(MODELS)}")
    return fitting(topics, MODELS[name])
