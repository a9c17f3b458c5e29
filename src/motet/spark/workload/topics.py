"""Publications and subscriptions over topics, as modelled in the paper on total notification order:
at each site, a power law; the favourites of a site lie in its own part of the topics. Also
subscriptions that cover each other in a given shape, as in the paper on mobility."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pyspark.sql import Column
from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark.workload.randomness import START_US, Dice, model, time_at_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# ── topics ───────────────────────────────────────────────────────────────────────────────

TOPICS: Final = 1000
SITES: Final = 5
"""As in the paper: topics 1 to 200 belong to the first site, and so on."""
DRAWS: Final = 64
"""Number of draws per topic of a subscription, to get enough different ones."""


def publications(
    spark: SparkSession,
    count: int,
    *,
    seed: int = 0,
    popularity: str = "geographic",
    topics: int = TOPICS,
    sites: int = SITES,
    publishers: int = 10,
    rate_per_s: float = 1000.0,
) -> DataFrame:
    """Number, time, site, publisher and topic of each publication. Each is at a random moment of
    its own interval, so numbers are in order of time."""
    _check(count, topics, sites)
    law, dice = model(popularity, topics), Dice(seed, F.col("id"))
    step_us = 1_000_000 / rate_per_s
    site = dice.below(sites, "site")
    at_us = F.floor((F.col("id") + dice.uniform("time")) * step_us) + START_US
    return spark.range(count).select(
        F.col("id").alias("number"),
        time_at_us(at_us).alias("time"),
        site.alias("site"),
        _named("publisher", site * publishers + dice.below(publishers, "publisher")),
        _topic(law.rank(dice.uniform("topic")), site, topics, sites).alias("topic"),
    )


def subscriptions(
    spark: SparkSession,
    clients: int,
    *,
    seed: int = 0,
    popularity: str = "geographic",
    topics: int = TOPICS,
    sites: int = SITES,
    size: int = 10,
) -> DataFrame:
    """For each client: its site, its topics, and its filter. A subscription has `size` different
    topics, or fewer if 64 draws per topic do not give enough."""
    _check(clients, topics, sites)
    if not 0 < size <= topics:
        raise MisuseError(f"a subscription has 1 to {topics} topics, not {size}")
    law, dice = model(popularity, topics), Dice(seed, F.col("id"))
    site = dice.below(sites, "site")

    def drawn(turn: Column) -> Column:
        return _topic(law.rank(dice.uniform("topic", turn)), F.col("site"), topics, sites)

    turns = F.sequence(F.lit(0), F.lit(DRAWS * size - 1))
    clients_at = spark.range(clients).select(
        "id", _named("subscriber", F.col("id")), site.alias("site")
    )
    chosen = F.sort_array(F.slice(F.array_distinct(F.transform(turns, drawn)), 1, size))
    words = F.array_join(F.col("topics").cast("array<string>"), ", ")
    return clients_at.withColumn("topics", chosen).select(
        F.col("subscriber").alias("client"),
        "site",
        "topics",
        F.concat(F.lit("topic in ("), words, F.lit(")")).alias("filter"),
    )


def _topic(rank: Column, site: Column, topics: int, sites: int) -> Column:
    """The topic with this rank at a site: topics count from 1, the site's own come first."""
    return F.pmod(rank - 1 + site * (topics // sites), F.lit(topics)) + 1


def _named(what: str, number: Column) -> Column:
    return F.concat(F.lit(f"{what}-"), number.cast("string")).alias(what)


def _check(count: int, topics: int, sites: int) -> None:
    if count < 0:
        raise MisuseError(f"the number of rows must be at least 0, not {count}")
    if not 0 < sites <= topics:
        raise MisuseError(f"the number of sites must be 1 to {topics}, not {sites}")


# ── covering ─────────────────────────────────────────────────────────────────────────────

WIDTH: Final = 10
"""Different subscriptions of a shape, as in the paper."""
WIDEST: Final = 1_000
SHAPES: Final = ("covered", "chained", "tree", "distinct")
RANDOM: Final = "random"


class Node(Struct, frozen=True):
    shape: str
    node: int
    parent: int | None
    """The node that covers it directly."""
    covered: int
    """Number of nodes that it covers."""
    low: int
    high: int

    @property
    def filter(self) -> str:
        return f"shape = '{self.shape}' and x between {self.low} and {self.high}"


# covered    the first covers all others, which are apart
# chained    each covers the next
# tree       each covers two more, and what they cover
# distinct   none covers any
# random     one of the four, for each client


def nodes(shape: str, width: int = WIDTH) -> list[Node]:
    """The subscriptions of a shape, numbered from 1."""
    if shape not in SHAPES:
        raise MisuseError(f"unknown shape {shape!r}; choose from {', '.join((*SHAPES, RANDOM))}")
    if not 0 < width <= WIDEST:
        raise MisuseError(f"a shape has 1 to {WIDEST} subscriptions, not {width}")
    parents = [_parent(shape, node) for node in range(1, width + 1)]
    covered = [0] * (width + 1)
    for node in range(1, width + 1):
        above = parents[node - 1]
        while above is not None:
            covered[above] += 1
            above = parents[above - 1]
    return [
        Node(shape, node, parents[node - 1], covered[node], *_interval(shape, node, width))
        for node in range(1, width + 1)
    ]


def _parent(shape: str, node: int) -> int | None:
    if node == 1 or shape == "distinct":
        return None
    return {"covered": 1, "chained": node - 1, "tree": node // 2}[shape]


def _interval(shape: str, node: int, width: int) -> tuple[int, int]:
    match shape:
        case "covered" if node == 1:
            return 0, 10 * width + 9
        case "chained":
            return node, 2 * width + 1 - node
        case "tree":
            # The binary digits of the number are the path from the root, left or right.
            size = 1 << (width.bit_length() + 1)
            low = 0
            for digit in bin(node)[3:]:
                size //= 2
                low += size if digit == "1" else 0
            return low, low + size - 1
    return 10 * node, 10 * node + 9


def covering_subscriptions(
    spark: SparkSession, clients: int, *, seed: int = 0, shape: str = RANDOM, width: int = WIDTH
) -> DataFrame:
    """One subscription per client: its shape, its number there, its parent, the filter."""
    from pyspark.sql import functions as F

    from motet.spark.workload.randomness import Dice

    if clients < 0:
        raise MisuseError(f"the number of clients must be at least 0, not {clients}")
    shapes = SHAPES if shape == RANDOM else (shape,)
    chosen = [each for one in shapes for each in nodes(one, width)]
    rows: list[dict[str, Any]] = [
        {**{name: getattr(each, name) for name in ("shape", "node", "parent", "covered")},
         "filter": each.filter, "at": at}
        for at, each in enumerate(chosen)
    ]  # fmt: skip
    fields = "at long, shape string, node int, parent int, covered int, filter string"
    table = F.broadcast(spark.createDataFrame(rows, fields))
    dice = Dice(seed, F.col("id"))
    picked = spark.range(clients).withColumn("at", dice.below(len(chosen), "node"))
    return picked.join(table, "at").select(
        F.concat(F.lit("subscriber-"), F.col("id").cast("string")).alias("client"),
        *("shape", "node", "parent", "covered", "filter"),
    )
