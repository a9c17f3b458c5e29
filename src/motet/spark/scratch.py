"""A folder for what a JVM of ours, and PySpark beside it, put down while they work. Spark clears up
behind itself unless it is killed; then there is one folder to remove."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from typing import Final

OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""What it has, Spark gives to the JVM that it starts; settings for the driver's JVM stay as they
are."""
ENDS_WITHIN_S: Final = 5.0

_made: list[str] = []


def prepare() -> None:
    """Call before a session is made. Does nothing if there is a JVM already."""
    from pyspark import SparkContext

    if _made or SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="motet-spark-")
    _made.append(folder)
    tempfile.tempdir = folder
    said = f'{os.environ.get(OPTIONS, "")} "-Djava.io.tmpdir={folder}"'
    os.environ[OPTIONS] = said.strip()
    atexit.register(_close)


def remove() -> None:
    """When nothing runs any more that could write there."""
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)


def _close() -> None:
    """The JVM ends when nobody talks to it any more; it clears up first. All is done by then, so
    that an interrupt would change nothing, but for what is said."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Exception):  # it may have ended before
            context.stop()
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
    remove()
