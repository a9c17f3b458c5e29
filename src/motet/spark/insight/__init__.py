"""What workflow events tell: how long steps wait and take, who hands over to whom, what is stuck.

    events = of_log(spark, Path("log.parquet"))
    found = report(events.count(), visits(events), pending(events))

Lives here
    events      workflow events of a log, an archive or brokers, in the same columns
    visits      each time that a step was done, by columns; all at once
    cases       the same, event by event; no Spark
    following   a stream of events: visits as they end, and how much happens in each window of time
    tallying    the table of steps, kept up to date batch by batch; no Spark
    report      tables: steps, hand-overs, open cases, outliers
    drawing     pictures of a report
    telling     a report, or the news in it, published as one transaction

May import: `motet.spark`, `motet.client`, `motet.model`, `motet.errors`; pyspark; `motet.pictures`
where it draws.

Must never: call an unknown time zero. What a log does not say is null.

Test only this room: `pytest tests/spark/test_insight.py tests/unit/spark`
"""

from motet.spark.insight.events import of_archive, of_brokers, of_log
from motet.spark.insight.report import Report, report
from motet.spark.insight.visits import pending, visits

__all__ = ["Report", "of_archive", "of_brokers", "of_log", "pending", "report", "visits"]
