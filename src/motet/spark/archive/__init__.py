"""What was published, kept as Parquet for as long as anybody likes, and shown to be the same.

    from motet.spark import archive
    archive.keep(spark, "motet://127.0.0.1:7701", Path("kept"), available_now=True)
    events = archive.read(spark, Path("kept"))

Lives here
    manifest    versions of an archive: which files it has, up to which ticks; no Spark
    placing     files that Spark has written, put in their places for good
    keeping     the streaming job
    compaction  few large files for many small ones
    proof       do archive and log agree, row for row?
    frames      an archive as a frame; its columns

May import: `motet.spark`, `motet.errors`, `motet.model`, `motet.client`; pyspark.

Must never: change or remove a file that a version names which a reader may have; let a version be
seen before all its files are on disk; take the same tick twice, or leave one out, whatever the
checkpoint says.

Invariants owned here
    - The files of a version together have every event from `since` on and below `upto` once.
    - A version is complete or absent, and its number is given once.

Test only this room: `pytest tests/spark/test_archive.py tests/unit/spark`
"""

from motet.spark.archive.compaction import compact
from motet.spark.archive.frames import read
from motet.spark.archive.keeping import check, keep
from motet.spark.archive.manifest import Manifest
from motet.spark.archive.proof import prove

__all__ = ["Manifest", "check", "compact", "keep", "prove", "read"]
