"""Replays: archives and foreign event logs, published again through a live overlay.

    brokers = ["motet://127.0.0.1:7701"]
    plan = prepare(spark, Path("log.xes.gz"), Path("run/replay"), publishers=4, brokers=brokers)
    asyncio.run(Replay(plan, brokers, Speed.parse("1000x")).run())

Lives here
    logs        foreign workflow logs, and archives, as frames
    files       the files of a log
    csv_files   CSV, read strictly
    xes_files   XES, read strictly
    parquet_files  Parquet, read by Spark once the columns of all files agree
    kinds       the type of the values in a column of text; times
    plan        all events in one order, on disk, divided among publishers
    publishers  durable clients that publish a plan at a speed and resume after a crash

May import: `motet.spark`, `motet.client`, `motet.model`, `motet.errors`; pyspark in `logs` and
`parquet_files`.

Must never: publish a row twice, or out of the plan's order; guess how far an earlier run came;
publish anything of a log that cannot be read exactly.

Invariants owned here
    - The k-th event of a publisher of a plan is the same in every run, and is the k-th of its
    session.
    - `_file` and `_row` of a plan name one row, or one event, of the source.

Test only this room: `pytest tests/spark/test_replay.py tests/unit/spark`
"""

from motet.spark.replay.plan import ReplayPlan, prepare
from motet.spark.replay.publishers import Replay, ReplayProgress, Speed

__all__ = ["Replay", "ReplayPlan", "ReplayProgress", "Speed", "prepare"]
