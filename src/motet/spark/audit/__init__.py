"""The audit: Spark jobs that judge histories of any size.

    from motet.spark.audit import audit

    found = audit(motet.spark.session("audit"), "history")
    assert found.is_clean, found.findings

Lives here
    history       a history as frames; the filters that match each event; violations as rows
    deliveries    exactly-once delivery; order per log and publisher; total order
    transactions  atomicity, visibility, Definition 3.4's order, hand-overs, serializability
    moves         answers to moves, and where sessions have been
    steps         the whole audit, step by step
    generator     large clean histories, for benchmarks

May import: `motet.audit`, `motet.matching`, `motet.model`, `motet.errors`; pyspark, pyarrow.

Must never: bring to the driver what grows with the history, except filters, brokers and violations;
call Python row by row.

Test only this room: `pytest tests/spark/test_audit.py`
"""

from motet.spark.audit.steps import audit

__all__ = ["audit"]
