"""What happened once, again, as events through a live overlay: an archive, or a log of others.

    brokers = ["motet://127.0.0.1:7701"]
    plan = prepare(spark, Path("log.xes.gz"), Path("run/replay"), publishers=4, brokers=brokers)
    asyncio.run(Replay(plan, brokers, Speed.parse("1000x")).run())

Lives here
    logs        workflow logs of others as frames: Parquet, CSV, XES
    files       which files a log has
    csv_files   CSV, read strictly
    xes_files   XES, read strictly
    surveying   both in tasks of Spark: first a look, then the frame
    parquet_files  Parquet, read by Spark once all files are known to mean the same
    kinds       what kind of values the texts of a column are
    times       texts that are times
    plan        all events in one order, on disk, divided among publishers
    preparing   the plan for a replay: found, or made
    planning    making one, with Spark
    speed       how fast: a factor, a duration, or as fast as it goes
    publishing  durable clients that publish a plan, and go on where they were
    rows        a row as an event

May import: `motet.spark`, `motet.client`, `motet.model`, `motet.errors`; pyspark in `logs`,
`parquet_files` and `planning`.

Must never: publish a row twice, or in another order than its plan's; guess how far an earlier run
has come; publish anything of a log that cannot be read exactly.

Invariants owned here
    - The k-th event of a publisher of a plan is the same in every run, and is the k-th of its
    session.
    - `_file` and `_row` of a plan name one row, or one event, of the source.

Test only this room: `pytest tests/spark/test_replay.py tests/unit/spark`
"""

from motet.spark.replay.plan import Plan
from motet.spark.replay.preparing import prepare
from motet.spark.replay.publishing import Replay, Told
from motet.spark.replay.speed import Speed

__all__ = ["Plan", "Replay", "Speed", "Told", "prepare"]
