"""A Spark session that knows Motet, and what to install if something is missing.

Spark's JVM and PySpark share one temporary folder. Spark removes its files itself unless it is
killed; then this folder can be removed instead.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack
from uuid import uuid4

from motet.errors import MisuseError, NotOffered, check_options
from motet.spark.options import ScanOptions, options_in

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


CONF: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "motet.spark.daemon",
    # Over TCP, most tasks wait 40 ms for a packet that the kernel delays.
    "spark.python.unix.domain.socket.enabled": "true",
    # Most other readers misread Spark's default timestamps as nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Default settings of a session."""
ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""For jobs of a few minutes: the JVM's second compiler would take nearly half of the CPU time and
finish when the job does. With one compiler, the JVM reserves a smaller code cache than an audit
needs, and stops compiling when it is full; hence the size."""
BRIEF: Final = {"spark.driver.extraJavaOptions": ONE_COMPILER}
"""Settings for short jobs on this machine."""
INSTALL: Final = "pip install 'motet[spark]'"
LEAST_JAVA: Final = 17
INSTALL_JAVA: Final = f"apt-get install openjdk-{LEAST_JAVA}-jre-headless"

_knowing: weakref.WeakSet[SparkSession] = weakref.WeakSet()
"""Sessions with Motet registered: Spark warns about a second registration."""


def require_pyspark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise NotOffered(f"motet.spark needs PySpark, which is not installed; run {INSTALL}")


def require_java() -> None:
    """Spark needs a JVM, and PySpark's own error without one is hard to understand."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    release = java_release(java) if java.is_file() else None
    if java.is_file() and (release is None or release >= LEAST_JAVA):
        return
    what = "none" if release is None else f"Java {release}"
    where = f"JAVA_HOME is {home}, which has {what}" if home else f"there is {what} on the PATH"
    raise NotOffered(
        f"Spark needs Java {LEAST_JAVA} or newer, but {where}; on Debian or Ubuntu: {INSTALL_JAVA}"
    )


def java_release(java: Path) -> int | None:
    """From the file `release`, which exists since Java 8: starting Java takes much longer."""
    try:
        note = (java.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    # Java 8 reports itself as 1.8.
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', note, re.MULTILINE)
    return int(found[1]) if found is not None else None


def register(spark: SparkSession) -> None:
    """Register `format("motet")` in a session and make it the session of this thread: Spark looks
    up formats in the session of the writing thread."""
    require_pyspark()
    from motet.spark.source import MotetSource

    if spark not in _knowing:
        spark.dataSource.register(MotetSource)
        _knowing.add(spark)
    spark.createDataFrame([], "nothing int")  # makes it the session of this thread


def session(name: str = "motet", *, master: str | None = None, **conf: str) -> SparkSession:
    """The session of this process, or a new one, with `format("motet")` registered. Spark's
    settings have dots in their names: write `**{"spark.executor.memory": "2g"}`."""
    require_pyspark()
    require_java()
    from pyspark.sql import SparkSession

    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted and (master is None or master.startswith("local")):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise Spark searches the PATH
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**CONF, **conf}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    register(made)
    return made


# ── scan ─────────────────────────────────────────────────────────────────────────────────


ENABLED: Final = "spark.sql.python.filterPushdown.enabled"


# Spark keeps pushed-down conditions with the loaded source, not with the read: a frame that is
# loaded once and used with two conditions gives wrong rows. So `scan` loads the source for every
# read, and keeps later conditions away from it.


def scan(spark: SparkSession, condition: Column | str, **options: Unpack[ScanOptions]) -> DataFrame:
    """The events that satisfy a Spark condition; brokers apply the part of it that filters can
    express. Options are those of `format("motet")`. Enables pushdown to Python sources in the
    session.

        levels = motet.spark.scan(spark, "level > 7", brokers=url, columns="tick, level:int")
    """
    require_pyspark()
    from pyspark.sql.functions import count, lit

    given = {name.lower(): str(value) for name, value in options.items()}
    if "pushdown" in given:
        raise MisuseError("omit the option pushdown: scan always enables it")
    known = {name.lower(): name for name in ScanOptions.__annotations__}
    said = {known.get(name, name): text for name, text in given.items()}
    check_options(said, known.values())
    options_in(said)
    register(spark)
    spark.conf.set(ENABLED, "true")
    loaded = spark.read.format("motet").options(**said, pushdown="true").load()
    # Spark pushes no condition through `observe`, so those of later steps stay above.
    return loaded.where(condition).observe(f"motet-{uuid4().hex}", count(lit(1)).alias("rows"))


# ── Spark's temporary folder ─────────────────────────────────────────────────────────────

OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Spark passes these to the JVM that it starts; settings for the driver's JVM are unaffected."""
ENDS_WITHIN_S: Final = 5.0

_made: list[str] = []


def prepare_scratch() -> Path | None:
    """Create the folder, before a session is created; returns None if a JVM exists already."""
    from pyspark import SparkContext

    if _made or SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return None
    folder = tempfile.mkdtemp(prefix="motet-spark-")
    _made.append(folder)
    tempfile.tempdir = folder
    said = f'{os.environ.get(OPTIONS, "")} "-Djava.io.tmpdir={folder}"'
    os.environ[OPTIONS] = said.strip()
    atexit.register(_close)
    return Path(folder)


def remove_scratch() -> None:
    """Call this when no process can write there any more."""
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)


def _close() -> None:
    """The JVM cleans up and ends when its stdin is closed. SIGINT is ignored: all work is done, and
    an interrupt would only print something."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # From here on the JVM may end before py4j's last command, which py4j would print at length.
    logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Exception):  # the JVM may have ended already
            context.stop()
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
    remove_scratch()
