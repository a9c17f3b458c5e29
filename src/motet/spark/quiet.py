"""Spark sessions that print nothing: the output of Spark's processes goes into a file.

The JVM and its Python workers inherit the descriptors of the process that starts the JVM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from motet.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def quiet_session(
    name: str, log: Path, *, master: str | None = None, level: str = "OFF", **conf: str
) -> SparkSession:
    """Like `session`, but its processes print into the file `log`. If Spark does not start, the
    content of the file is printed to standard error. `level` is the log level of the JVM."""
    try:
        with jvm_output_into(log):
            made = session(name, master=master, **conf)
    except Exception:
        print(log.read_text(encoding="utf-8", errors="replace").rstrip(), file=sys.stderr)
        raise
    hush(made, level)
    return made


def hush(spark: SparkSession, level: str = "OFF") -> None:
    """Silence Spark's own reports of errors: they are raised anyway, and Spark would print them
    again at length in several places. `level` is the log level of the JVM."""
    from pyspark.logger import PySparkLogger

    spark.sparkContext.setLogLevel(level)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None  # called if the JVM ends first


@contextmanager
def jvm_output_into(file: Path) -> Iterator[None]:
    """Processes started within the block print into this file as long as they live. The output of
    this process is unaffected."""
    with file.open("ab") as log, own_stderr():
        sys.stdout.flush()
        before = {number: os.dup(number) for number in (1, 2)}
        for number in before:
            os.dup2(log.fileno(), number)
        try:
            yield
        finally:
            for number, kept in before.items():
                os.dup2(kept, number)
                os.close(kept)


@contextmanager
def own_stderr() -> Iterator[None]:
    """`sys.stderr` uses another descriptor than 2 within the block."""
    before = sys.stderr
    before.flush()
    try:
        number = os.dup(before.fileno())
    except OSError:  # a test captures stderr without a descriptor
        yield
        return
    with os.fdopen(number, "w", encoding="utf-8", errors="replace") as own:
        sys.stderr = own
        try:
            yield
        finally:
            sys.stderr = before
