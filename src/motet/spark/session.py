"""A session of Spark that knows Motet, and what to install if something is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from motet.errors import NotOffered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "motet.spark.daemon",
    # Over TCP most tasks wait 40 ms for a packet that the kernel holds back.
    "spark.python.unix.domain.socket.enabled": "true",
    # What it writes otherwise, most other readers take for nanoseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""What a session of ours has, unless other things are said."""
ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""For jobs of a few minutes: the JVM's second compiler would take nearly half of the processors,
and be done when they are. With one, the JVM reserves less room for what it compiles than an audit
needs, and when that is full it compiles nothing more."""
BRIEF: Final = {"spark.driver.extraJavaOptions": ONE_COMPILER}
"""For such jobs on this machine."""
INSTALL: Final = "pip install 'motet[spark]'"
INSTALL_JAVA: Final = "apt-get install openjdk-17-jre-headless"


def require_pyspark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise NotOffered(f"motet.spark needs PySpark, which is not installed: {INSTALL}")


def require_java() -> None:
    """Spark starts a JVM: without one, PySpark's own words are hard to understand."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java").exists() if home else shutil.which("java") is not None
    if not found:
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is none on the PATH"
        raise NotOffered(
            f"Spark needs Java 17 or newer, and {where}; on Debian or Ubuntu: {INSTALL_JAVA}"
        )


def register(spark: SparkSession) -> None:
    """Make `format("motet")` known to a session."""
    require_pyspark()
    from motet.spark.source import MotetSource

    spark.dataSource.register(MotetSource)


def session(name: str = "motet", *, master: str | None = None, **conf: str) -> SparkSession:
    """The session of this process, or a new one, which knows `format("motet")`. Settings of Spark
    have dots in their names: write `**{"spark.executor.memory": "2g"}`."""
    require_pyspark()
    require_java()
    from pyspark.sql import SparkSession

    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted and (master is None or master.startswith("local")):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # it would look on the PATH
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**CONF, **conf}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    register(made)
    return made
