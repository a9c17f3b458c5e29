"""A session of Spark that knows Motet, and what to install if something is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import weakref
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
LEAST_JAVA: Final = 17
INSTALL_JAVA: Final = f"apt-get install openjdk-{LEAST_JAVA}-jre-headless"

_knowing: weakref.WeakSet[SparkSession] = weakref.WeakSet()
"""Sessions that know it: Spark warns of who is registered twice."""


def require_pyspark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise NotOffered(f"motet.spark needs PySpark, which is not installed: {INSTALL}")


def require_java() -> None:
    """Spark starts a JVM: without one, PySpark's own words are hard to understand."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    release = java_release(java) if java.is_file() else None
    if java.is_file() and (release is None or release >= LEAST_JAVA):
        return
    what = "none" if release is None else f"Java {release}"
    where = (
        f"JAVA_HOME is {home}, where there is {what}" if home else f"there is {what} on the PATH"
    )
    raise NotOffered(
        f"Spark needs Java {LEAST_JAVA} or newer, and {where}; on Debian or Ubuntu: {INSTALL_JAVA}"
    )


def java_release(java: Path) -> int | None:
    """As the file beside it says, which is there since Java 8: to start it takes much longer."""
    try:
        note = (java.resolve().parent.parent / "release").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    # Java 8 calls itself 1.8.
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', note, re.MULTILINE)
    return int(found[1]) if found is not None else None


def register(spark: SparkSession) -> None:
    """Make `format("motet")` known to a session, and the session to this thread: Spark looks for
    formats in the session of the thread that writes."""
    require_pyspark()
    from motet.spark.source import MotetSource

    if spark not in _knowing:
        spark.dataSource.register(MotetSource)
        _knowing.add(spark)
    spark.createDataFrame([], "nothing int")  # makes it this thread's


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
