"""Workflow analysis: how long steps wait and take, hand-overs between agents, stuck cases.

    events = of_log(spark, Path("log.parquet"))
    found = report(events.count(), visits(events), pending(events))

Lives here
    events      workflow events of a log, an archive or brokers; visits: each time a step was done
    stream      a stream of events: visits as they end, and rates per time window
    report      tables: steps, hand-overs, open cases, outliers; published as one transaction
    pictures    pictures of a report

May import: `motet.spark`, `motet.client`, `motet.model`, `motet.errors`; pyspark; `motet.pictures`
where it draws.

Must never: report an unknown time as zero. What a log does not say is null.

Test only this room: `pytest tests/spark/test_insight.py tests/unit/spark`
"""

from motet.spark.insight.events import of_archive, of_brokers, of_log, pending, visits
from motet.spark.insight.report import InsightReport, report

__all__ = ["InsightReport", "of_archive", "of_brokers", "of_log", "pending", "report", "visits"]
