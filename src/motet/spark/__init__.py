"""Motet in Spark: events as rows, rows as events, exactly once and in whole transactions.

    spark = motet.spark.session("levels")            # or any session: motet.spark.register(spark)
    events = spark.readStream.format("motet").option("brokers", "motet://127.0.0.1:7701").load()

Lives here
    session     a session of Spark that knows Motet; what to install if something is missing
    scratch     a folder for what Spark puts down while it works
    filling     folders that are filled from nothing
    daemon      Spark's workers, with all this loaded
    source      `format("motet")`: which reader for which read
    options     what can be said with `option`
    columns     columns of a stream as Spark's schema, and as Arrow
    offsets     how far a query is, as JSON
    positions   how people say where a read begins or ends
    frontier    how far all pubends may be read so that no transaction is torn; pure
    course      where reads begin, how far they may go, where they end
    passing     what a stream passes over, because its filter does not want it
    brokers     asking brokers, again and again if they are away
    slices      which task reads what
    reading     what a task does
    batch       batch reads
    stream      streaming reads
    failures    errors that have come through Spark, in few words
    pushdown, pushing   batch reads whose conditions travel to the brokers: `scan`
    sink        writes: tasks stage rows at a broker, the driver commits them as one transaction
    sink_options   what can be said with `option` of a sink
    rows        which columns can be events, and batches of Arrow as their bodies
    audit/      jobs that judge histories
    workload, archive, replay, insight   rooms of their own, for `motet pipeline`

May import: `motet.client`, `motet.audit`, `motet.matching`, `motet.model`, `motet.errors`; pyspark
only where it is used, so that this room can say what is missing; pyarrow, numpy.

Must never: give, or write, a part of a transaction without the rest; give other rows when the same
range is read again; take a gap between ticks for a loss.

Invariants owned here
    - An offset splits no transaction among the pubends that are read.
    - The rows of a slice follow from broker, pubend, range, filter and columns alone.
    - What is not kept any more is an error, unless it was said that it should not be.
    - What is written is seen when its batch is committed, and a batch is committed once.

Test only this room: `pytest tests/spark tests/unit/spark`
"""

from motet.spark.pushdown import scan
from motet.spark.session import register, session

__all__ = ["register", "scan", "session"]
