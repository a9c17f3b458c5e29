"""Publications and subscriptions over topics, as the paper on total notification order models them:
at each site, a power law; the favourites of a site lie in its own part of the topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from motet.errors import MisuseError
from motet.spark.workload.dice import START_US, Dice, time_at_us
from motet.spark.workload.powers import model

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS: Final = 1000
SITES: Final = 5
"""As in the paper: topics 1 to 200 are at home at the first site, and so on."""
DRAWS: Final = 64
"""For each topic of a subscription so many are drawn, until enough different ones have come."""


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
    """Number, time, site, publisher and topic of each publication. They come evenly, each at a
    random moment of its own part of time, so that their numbers are in order of time."""
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
    """Of each client: its site, its topics, and the filter that says so. Topics are drawn until
    there are `size` different ones; should 64 draws for each not give so many, there are fewer."""
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
    """The topic that has this rank at a site: topics from 1 on, its own first."""
    return F.pmod(rank - 1 + site * (topics // sites), F.lit(topics)) + 1


def _named(what: str, number: Column) -> Column:
    return F.concat(F.lit(f"{what}-"), number.cast("string")).alias(what)


def _check(count: int, topics: int, sites: int) -> None:
    if count < 0:
        raise MisuseError(f"there cannot be {count} rows")
    if not 0 < sites <= topics:
        raise MisuseError(f"{topics} topics cannot be shared by {sites} sites")
