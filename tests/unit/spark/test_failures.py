"""Errors that have come through Spark, in few words."""

from __future__ import annotations

import sys
from unittest.mock import Mock

import pytest

from motet.cli.console import hint_for
from motet.errors import Disconnected, MisuseError, MotetError
from motet.spark.failures import DEBUG, LONGEST_CHARS, brief, briefly, end_of_jvm

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
def test_other_errors_of_spark_are_told_by_their_first_lines(text: str, told: str) -> None:
    assert str(brief(SparkError(text))) == told


def test_a_file_that_spark_cannot_read_is_named() -> None:
    text = (
        "An error occurred while calling o1.collect.\n: [FAILED_READ_FILE.NO_HINT] Encountered "
        "error while reading file file:///logs/a%20b.parquet.  SQLSTATE: KD001\n\tat org.apache"
    )
    told = brief(SparkError(text))
    assert type(told) is MisuseError
    assert str(told).startswith("/logs/a b.parquet cannot be read completely")


IN_A_WORKER = """Job aborted due to stage failure: Task 0 failed, most recent failure: Lost task \
0.0 (TID 0): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "one.py", line 1, in one
KeyError: 'a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "two.py", line 2, in two
    raise RuntimeError("outer")

RuntimeError: outer

\tat org.apache.spark.Something
Caused by: java.lang.IllegalStateException: nobody cares
"""
IN_JAVA = """An error occurred while calling o55.save.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030
\tat org.apache.spark.sql.Something(Something.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 17 more
"""
ANALYSIS = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `x` cannot be resolved. \
Did you mean one of the following? [`id`]. SQLSTATE: 42703;
'Project ['x]
+- Range (0, 3)
"""


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        (IN_A_WORKER, "RuntimeError: outer", DEBUG),
        (IN_JAVA, "IOException: No space left on device", "folder is full"),
        (
            ANALYSIS,
            "A column with name `x` cannot be resolved. Did you mean one of the following? [`id`].",
            DEBUG,
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited.", "Java gateway", "Java 17 or newer"),
        (
            "calling x\n: java.net.BindException: Address already in use: Service 'sparkDriver'",
            "BindException: Address already in use: Service 'sparkDriver'",
            "no free port",
        ),
    ],
)
def test_an_error_of_spark_is_told_with_a_hint(text: str, told: str, hint: str) -> None:
    said = brief(SparkError(text))
    assert str(said).startswith(told)
    assert "\n" not in str(said)
    assert hint in hint_for(said)


def test_hints_are_those_of_the_error_that_it_was() -> None:
    away = brief(
        SparkError("x\nmotet.errors.Disconnected: no broker answers at motet://127.0.0.1:9\n")
    )
    assert type(away) is Disconnected
    assert "is the overlay running?" in hint_for(away)
    late = brief(SparkError("x\nmotet.errors.NotEffective: it takes too long\n"))
    assert (type(late), str(late)) == (MotetError, "it takes too long")


def test_a_shortened_error_of_a_batch_is_shortened_to_the_same_text() -> None:
    first = brief(SparkError(IN_JAVA))
    text = (
        f"Traceback (most recent call last):\n  File x\nmotet.spark.failures.SparkFailed: {first}\n"
    )
    second = brief(SparkError(text))
    assert (str(second), hint_for(second)) == (str(first), hint_for(first))


def test_an_error_of_java_is_told_by_its_outermost_exception() -> None:
    text = """calling o1.save.
: org.apache.spark.SparkClassNotFoundException: [NOT_FOUND] Failed to find x. SQLSTATE: 1
\tat org.apache.spark.Something
Caused by: java.lang.ClassNotFoundException: x.DefaultSource
"""
    assert str(brief(SparkError(text))) == "SparkClassNotFoundException: Failed to find x."


def test_a_jvm_that_has_ended_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Mock()
    pyspark = Mock(SparkContext=Mock(_gateway=Mock(proc=process)))
    monkeypatch.setitem(sys.modules, "pyspark", pyspark)
    for status, how in ((-9, "by SIGKILL"), (1, "with status 1")):
        process.poll.return_value = status
        assert str(end_of_jvm()) == f"Spark's JVM ended {how}"
    process.poll.return_value = None
    assert end_of_jvm() is None
    monkeypatch.delitem(sys.modules, "pyspark")
    assert end_of_jvm() is None


def test_a_batch_raises_what_is_short() -> None:
    def work(problem: Exception) -> None:
        raise problem

    with pytest.raises(MotetError, match="ticks 1 to 9") as caught:
        briefly(work)(SparkError(THROUGH_SPARK))
    assert caught.value.__suppress_context__
    with pytest.raises(ValueError, match="mine"):
        briefly(work)(ValueError("mine"))
