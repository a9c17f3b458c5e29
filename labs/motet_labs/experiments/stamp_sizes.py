"""Sizes of timestamps for many subscriptions, like figures 7 and 8 of paper 4.

Spark draws the subscriptions and counts, for every two topics, the subscriptions that have both: a
product of matrices in each partition. A group is a bitmap. What is really sent comes from the
machine of a site that has these groups; it is the same as if all streams had subscribed there.

The paper's sizes are means over topics, of whole groups. Over events, busy topics count more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from motet.protocol.sequencing.facts import NumbersRequested, TopicsNamed
from motet.protocol.sequencing.messages import MODES, Numbers
from motet.protocol.sequencing.site import Site, effects
from motet_labs.bench.sequencers import BATCH, Draw
from motet_labs.experiments.regions import exponent, name_of, weights
from motet_labs.figures import Progress

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "local[2]"
CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
}
PARTITIONS: Final = 4
PUBLISHER: Final = "publisher"
GRAMS: Final = "each int, topic int, shared array<int>"
GROUPS: Final = "each int, topic int, size_causal int, size_pairs int, causal binary, pairs binary"


class SizeRow(Struct, frozen=True):
    """Mean and standard deviation of the number of entries. `topics`, `events`: of whole groups, a
    topic with itself; `sent`: of the entries that our timestamps really have, and their own
    number."""

    shape: str
    mode: str
    each: int
    """Topics of a client."""
    total: int
    """Of all clients."""
    topics: float
    topics_deviation: float
    events: float
    events_deviation: float
    sent: float
    sent_deviation: float

    def to_json(self) -> dict[str, Any]:
        return {
            key: float(f"{value:.5g}") if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


class SizeEffort(Struct, frozen=True):
    clients: int
    topics: int
    each: tuple[int, ...]
    """Topics of a client, in turn."""
    warm_up: int
    events: int
    """Of the machine."""


def measure(
    effort: SizeEffort, shapes: Sequence[str], folder: Path, tell: Progress
) -> list[SizeRow]:
    from motet.spark.quiet import quiet_session

    tell(f"sizes: starting Spark on {MASTER}")
    spark = quiet_session("motet experiment", folder / "spark.log", master=MASTER, **CONF)
    try:
        return [row for shape in shapes for row in of_shape(spark, effort, shape, tell)]
    finally:
        spark.stop()


def of_shape(
    spark: SparkSession, effort: SizeEffort, shape: str, tell: Progress
) -> Iterator[SizeRow]:
    power = exponent(shape, effort.topics)
    tell(f"sizes, {shape}: Spark counts shared topics of {effort.clients:,} clients")
    found = groups(subscriptions(spark, effort, power), effort).collect()
    shares = weights(power, effort.topics)
    for each in effort.each:
        rows = sorted((row for row in found if row["each"] == each), key=lambda row: row["topic"])
        for mode in MODES:
            tell(f"sizes, {shape}: {each} topics per client, {mode}")
            sizes = [row[f"size_{mode}"] for row in rows]
            partners = [members(row[mode], effort.topics) for row in rows]
            over_events = sum(size * share for size, share in zip(sizes, shares, strict=True))
            square = sum(size**2 * share for size, share in zip(sizes, shares, strict=True))
            sent = SizedSite(mode, partners, power).run(effort.warm_up, effort.events)
            yield SizeRow(
                shape, mode, each, each * effort.clients,
                mean(sizes), pstdev(sizes),
                over_events, max(0.0, square - over_events**2) ** 0.5,
                mean(sent), pstdev(sent),
            )  # fmt: skip


# ── in Spark ─────────────────────────────────────────────────────────────────────────────


def subscriptions(spark: SparkSession, effort: SizeEffort, power: float) -> DataFrame:
    """Of each client: different ranks, as if drawn one by one until there are enough. Those whose
    exponential clocks ring first are just these; a shorter subscription is a beginning of it."""
    from pyspark.sql import functions as F

    from motet.spark.workload.randomness import Dice

    dice, shares = Dice(1, F.col("id")), weights(power, effort.topics)

    def ring(rank: Any) -> Any:
        share = F.element_at(F.lit(shares), rank + 1)
        return F.struct(
            (-F.log(1.0 - dice.uniform("ring", rank)) / share).alias("at"), rank.alias("rank")
        )

    ranks = F.sequence(F.lit(0), F.lit(effort.topics - 1))
    first = F.slice(F.sort_array(F.transform(ranks, ring)), 1, max(effort.each))
    clients = spark.range(0, effort.clients, 1, PARTITIONS)
    return clients.select(F.transform(first, lambda pair: pair["rank"]).alias("ranks"))


def groups(chosen: DataFrame, effort: SizeEffort) -> DataFrame:
    """By topics per client, and topic: the sizes of its groups, and the groups as bitmaps."""
    steps, topics = effort.each, effort.topics

    def grams(batches: Iterator[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
        import numpy
        import pandas

        some = [numpy.stack(batch["ranks"].to_numpy()) for batch in batches if len(batch)]
        if not some:
            return
        ranks = numpy.concatenate(some)
        clients = numpy.arange(len(ranks))[:, None]
        has = numpy.zeros((len(ranks), topics), dtype=numpy.float32)
        for each in steps:
            has[clients, ranks[:, :each]] = 1
            shared = (has.T @ has).astype(numpy.int32)
            yield pandas.DataFrame({"each": each, "topic": range(topics), "shared": list(shared)})

    def joined(key: tuple[Any, ...], rows: pandas.DataFrame) -> pandas.DataFrame:
        import numpy
        import pandas

        each, topic = key
        shared = numpy.sum(numpy.stack(rows["shared"].to_numpy()), axis=0)
        shared[topic] = 0
        one, two = shared >= 1, shared >= 2
        told = {"each": each, "topic": topic, "size_causal": 1 + int(one.sum())}
        told |= {"size_pairs": 1 + int(two.sum())}
        told |= {"causal": numpy.packbits(one).tobytes(), "pairs": numpy.packbits(two).tobytes()}
        return pandas.DataFrame([told])

    return chosen.mapInPandas(grams, GRAMS).groupBy("each", "topic").applyInPandas(joined, GROUPS)


def members(bitmap: bytes, topics: int) -> tuple[int, ...]:
    import numpy

    bits = numpy.unpackbits(numpy.frombuffer(bitmap, dtype=numpy.uint8), count=topics)
    return tuple(bits.nonzero()[0].tolist())


# ── the machine ──────────────────────────────────────────────────────────────────────────


class SizedSite:
    """The machine of a single site, whose topics have these groups."""

    def __init__(self, mode: str, partners: Sequence[Sequence[int]], power: float) -> None:
        self.site = Site(0, 1, mode, remembered=BATCH)
        topics = len(partners)
        self.site.apply(TopicsNamed(tuple(map(name_of, range(topics)))), 0.0, effects())
        self.site.groups.restore_partners(
            (topic, tuple(some), ()) for topic, some in enumerate(partners) if some
        )
        self._draw = Draw(power, topics, seed=2)
        self._made = 0

    def run(self, warm_up: int, events: int) -> list[int]:
        """The size of each timestamp after the first ones: its entries, and its own number."""
        for _ in range(0, warm_up, BATCH):
            self._batch()
        return [size for _ in range(0, events, BATCH) for size in self._batch()]

    def _batch(self) -> list[int]:
        out = effects()
        topics = self._draw.topics(BATCH)
        fact = NumbersRequested(PUBLISHER, self._made + 1, topics, self._made)
        self._made += BATCH
        self.site.apply(fact, 0.0, out)
        frames = [frame for _, frame in out.answers if isinstance(frame, Numbers)]
        return [1 + len(stamp.entries) // 2 for frame in frames for stamp in frame.stamps if stamp]
