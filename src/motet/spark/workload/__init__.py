"""Workloads of any size, made by Spark: the same seed gives the same rows, however many tasks.

    from motet.spark.workload import workflow_log
    workflow_log(spark, 100_000, seed=7).write.parquet("log")

Lives here
    randomness  dice that depend on seed, row and purpose alone; power laws
    topics      publications and subscriptions over topics, or that cover each other
    workflow    cases that wait, are handled and change hands
    storage     a workload as Parquet, with a note of its parameters

May import: `motet.spark`, `motet.errors`; pyspark. Power laws and shapes are plain Python.

Must never: let a row depend on its partition, on the clock, or on the order of rows.

Test only this room: `pytest tests/spark/test_workload.py`
"""

from motet.spark.workload.storage import store
from motet.spark.workload.topics import covering_subscriptions, publications, subscriptions
from motet.spark.workload.workflow import workflow_log

__all__ = ["covering_subscriptions", "publications", "store", "subscriptions", "workflow_log"]
