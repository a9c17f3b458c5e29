"""Subscriptions that cover each other in a given shape, as the paper on mobility moves them.

covered    the first covers all others, which are apart
chained    each covers the next
tree       each covers two more, and what they cover
distinct   none covers any
random     one of the four, for each client
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from motet.errors import MisuseError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDTH: Final = 10
"""Different subscriptions of a shape, as in the paper."""
WIDEST: Final = 1_000
SHAPES: Final = ("covered", "chained", "tree", "distinct")
RANDOM: Final = "random"


class Node(Struct, frozen=True):
    shape: str
    node: int
    parent: int | None
    """Who covers it directly."""
    covered: int
    """How many others it covers."""
    low: int
    high: int

    @property
    def filter(self) -> str:
        return f"shape = '{self.shape}' and x between {self.low} and {self.high}"


def nodes(shape: str, width: int = WIDTH) -> list[Node]:
    """The subscriptions of a shape, numbered from 1 on."""
    if shape not in SHAPES:
        raise MisuseError(f"{shape!r} is no shape; there are {', '.join((*SHAPES, RANDOM))}")
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
            # The way down from the root, left or right, is in the digits of the number.
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
    """Of each client one subscription: its shape, its number there, who covers it, the filter."""
    from pyspark.sql import functions as F

    from motet.spark.workload.dice import Dice

    if clients < 0:
        raise MisuseError(f"there cannot be {clients} clients")
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
