"""Motet in Spark: events as rows, rows as events, exactly once and in whole transactions.

    spark = motet.spark.session("levels")            # or any session: motet.spark.register(spark)
    events = spark.readStream.format("motet").option("brokers", "motet://127.0.0.1:7701").load()

Lives here
    session     a Spark session that knows Motet; what to install if something is missing; `scan`
    quiet       sessions whose processes print into a file
    output_folder   output folders that are valid only when complete
    daemon      the daemon of Spark's Python workers, with Motet loaded
    failures    errors that came through Spark, shortened to their cause
    source      `format("motet")`: batch and streaming reads
    options     the options of a read, and offsets
    columns     columns of a stream as Spark's schema, and as Arrow
    frontier    how far all pubends can be read without splitting a transaction; pure
    planner     where reads begin, how far they go, where they end; the logs of several brokers
    slices      the ranges that tasks read, and how a task reads one
    sink        writes: tasks stage rows at a broker, the driver commits them as one transaction
    audit/      jobs that check histories
    workload, archive, replay, insight   rooms of their own, for `motet pipeline`

May import: `motet.client`, `motet.audit`, `motet.matching`, `motet.model`, `motet.errors`; pyspark
only where it is used, so that a missing installation can be reported; pyarrow, numpy.

Must never: return or write a part of a transaction without the rest; return other rows when the
same range is read again; treat a gap between ticks as a loss.

Invariants owned here
    - An offset splits no transaction among the pubends that are read.
    - The rows of a slice follow from broker, pubend, range, filter and columns alone.
    - Events that are no longer kept are an error, unless failOnDataLoss is false.
    - Rows become visible when their batch is committed, and a batch is committed once.

Test only this room: `pytest tests/spark tests/unit/spark`
"""

from motet.spark.session import register, scan, session

__all__ = ["register", "scan", "session"]
