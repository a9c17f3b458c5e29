"""A batch reader whose conditions travel to the brokers. Spark applies them again afterwards, so
what a broker keeps may be more than what is wanted, and must never be less."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from math import isnan
from typing import Any, Final

from pyspark.sql import datasource as pushed

from motet.client.asking import ATTRIBUTE
from motet.errors import FilterError
from motet.model import Filter, attr
from motet.spark.batch import BatchReader
from motet.spark.columns import Columns

FITTING: Final = {"bool": bool, "int": int, "float": (int, float), "text": str}
"""What a column of a kind may be compared with at the broker as in Spark."""
EXACT: Final = 2**53
"""From here on a column of floats has rounded some of the ints that brokers know exactly."""


class PushingReader(BatchReader):
    def pushFilters(self, filters: list[pushed.Filter]) -> Iterable[pushed.Filter]:
        for each in filters:
            found = as_filter(each, self._columns)
            if found is not None:
                with suppress(FilterError):  # too complex together: Spark does the rest
                    self.filter = found if self.filter is None else self.filter & found
        return filters


def as_filter(condition: pushed.Filter, columns: Columns) -> Filter | None:
    """The same in the language of brokers; None if that has no words for it."""
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    kind = columns.kinds.get(path[0]) if len(path) == 1 else None
    if kind not in FITTING:
        return None
    name = attr(path[0].removeprefix(ATTRIBUTE))
    if isinstance(condition, pushed.IsNotNull):
        return name.is_not_null()
    value: Any = getattr(condition, "value", None)
    values = value if isinstance(value, list) else [value]
    if not values or not all(_fits(each, kind) for each in values):
        return None
    try:
        return _compared(condition, name, value, kind)
    except FilterError:
        return None


def _compared(condition: pushed.Filter, name: Any, value: Any, kind: str) -> Filter | None:
    match condition:
        case pushed.EqualTo() | pushed.EqualNullSafe():
            found = name == value
        case pushed.In():
            found = name.isin(value)
        case pushed.LessThan():
            found = name < value
        case pushed.LessThanOrEqual():
            found = name <= value
        case pushed.GreaterThan() if kind != "float":  # to Spark, NaN is above everything
            found = name > value
        case pushed.GreaterThanOrEqual() if kind != "float":
            found = name >= value
        case pushed.StringStartsWith():
            found = name.startswith(value)
        case _:
            return None
    assert isinstance(found, Filter)
    return found


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool) != (kind == "bool"):
        return False
    if not isinstance(value, FITTING[kind]):  # type: ignore[arg-type]
        return False
    return kind != "float" or (not isnan(value) and abs(value) < EXACT)
