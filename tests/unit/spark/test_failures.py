"""Errors that have come through Spark, in few words."""

from __future__ import annotations

import pytest

from motet.errors import MisuseError, MotetError
from motet.spark.failures import LONGEST_CHARS, brief, briefly

THROUGH_SPARK = """[STREAM_FAILED] Query [id = 1] terminated: [PYTHON_DATA_SOURCE_ERROR]
Traceback (most recent call last):
  File "worker.py", line 1, in main
motet.errors.EventsLost: B1.1: ticks 1 to 9 are not kept any more
\tat org.apache.spark.Something
"""


class SparkError(Exception):
    """As Spark raises them."""


SparkError.__module__ = "pyspark.errors"


def test_errors_of_ours_are_told_as_they_were() -> None:
    assert str(brief(SparkError(THROUGH_SPARK))) == "B1.1: ticks 1 to 9 are not kept any more"
    misuse = brief(SparkError("x\nmotet.errors.MisuseError: say it otherwise\n"))
    assert type(misuse) is MisuseError
    assert str(misuse) == "say it otherwise"


@pytest.mark.parametrize(
    ("text", "told"),
    [("one\n: two\nthree", "one : two"), ("", "SparkError"), ("x" * 900, "x" * LONGEST_CHARS)],
)
def test_others_by_their_first_lines(text: str, told: str) -> None:
    assert str(brief(SparkError(text))) == told


def test_a_file_that_spark_cannot_read_is_named() -> None:
    text = (
        "An error occurred while calling o1.collect.\n: [FAILED_READ_FILE.NO_HINT] Encountered "
        "error while reading file file:///logs/a%20b.parquet.  SQLSTATE: KD001\n\tat org.apache"
    )
    told = brief(SparkError(text))
    assert type(told) is MisuseError
    assert str(told).startswith("/logs/a b.parquet cannot be read to its end")


def test_a_batch_raises_what_is_short() -> None:
    def work(problem: Exception) -> None:
        raise problem

    with pytest.raises(MotetError, match="ticks 1 to 9") as caught:
        briefly(work)(SparkError(THROUGH_SPARK))
    assert caught.value.__suppress_context__
    with pytest.raises(ValueError, match="mine"):
        briefly(work)(ValueError("mine"))
