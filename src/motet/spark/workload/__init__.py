"""Workloads of any size, made by Spark: the same seed gives the same rows, however many tasks.

    from motet.spark.workload import workflow_log
    workflow_log(spark, 100_000, seed=7).write.parquet("log")

Lives here
    dice        randomness that depends on seed, row and purpose alone
    powers      which topic: power laws
    topics      publications and subscriptions over topics, with regions of their own favourites
    covering    subscriptions that cover each other in a given shape
    workflow    cases that wait, are handled and change hands
    storing     a workload as Parquet, with a note of how it was made

May import: `motet.spark`, `motet.errors`; pyspark. `powers` and the shapes of `covering` are plain
Python.

Must never: let a row depend on its partition, on the clock, or on the order in which rows come.

Test only this room: `pytest tests/spark/test_workload.py`
"""

from motet.spark.workload.covering import covering_subscriptions
from motet.spark.workload.storing import store
from motet.spark.workload.topics import publications, subscriptions
from motet.spark.workload.workflow import workflow_log

__all__ = ["covering_subscriptions", "publications", "store", "subscriptions", "workflow_log"]
