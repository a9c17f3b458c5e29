"""The audit: jobs of Spark that judge histories of any size.

    from motet.spark.audit import audit

    found = audit(motet.spark.session("audit"), "history")
    assert found.is_clean, found.findings

Lives here
    tables        a history as frames; what is small enough to be sent around
    matching      which filters match which events, by Motet's own index over batches of Arrow
    catalogue     every event once, with all that is known of it
    dues          what was owed, summed up by zones of ticks
    arrivals      exactly once: what was owed and what came, summed up, then looked at
    ordering      orders of ticks and publishers, and the total order
    transacting   atomicity, visibility, Definition 3.4's order, hand-overs
    blocks        what stands behind a cut is whole, batches of sinks too
    conflicts     serializability: relations in Spark, circles among what is left of them
    findings      violations as rows, counted, with examples
    judging       all of it, step by step
    generating    large clean histories, for benchmarks

May import: `motet.audit`, `motet.matching`, `motet.model`, `motet.errors`; pyspark, pyarrow.

Must never: bring to the driver what grows with the history, but for filters, brokers and
violations; call Python row by row.

Test only this room: `pytest tests/spark/test_audit.py`
"""

from motet.spark.audit.judging import audit

__all__ = ["audit"]
