"""The archive: published events, kept permanently as Parquet, and proven equal to the logs.

    from motet.spark import archive
    archive.keep(spark, "motet://127.0.0.1:7701", Path("kept"), available_now=True)
    events = archive.read(spark, Path("kept"))

Lives here
    manifest    versions of an archive: its files, and up to which ticks; no Spark
    ingestion   the streaming job; compaction; an archive as a frame
    proof       row-by-row comparison of archive and log

May import: `motet.spark`, `motet.errors`, `motet.model`, `motet.client`; pyspark.

Must never: change or remove a file of a version that a reader may have; publish a version before
all its files are on disk; archive a tick twice, or skip one, whatever the checkpoint says.

Invariants owned here
    - The files of a version together have every event from `since` on and below `upto` once.
    - A version is complete or absent, and its number is given once.

Test only this room: `pytest tests/spark/test_archive.py tests/unit/spark`
"""

from motet.spark.archive.ingestion import check, compact, keep, read
from motet.spark.archive.manifest import Manifest
from motet.spark.archive.proof import prove

__all__ = ["Manifest", "check", "compact", "keep", "prove", "read"]
