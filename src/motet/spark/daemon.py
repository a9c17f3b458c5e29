"""Spark's daemon for Python workers, with Motet loaded. Workers are forked from it for tasks: each
would load all this again.

Spark lets a worker collect its garbage behind every task, and the next task waits for that. What
is loaded here stays for ever, so it is not looked at: that is most of what a worker has.
"""

from __future__ import annotations

import gc

import pandas
import pyarrow.compute
from pyspark.daemon import manager
from pyspark.sql.pandas import types
from pyspark.sql.worker import plan_data_source_read, write_into_data_source

from motet.spark import source

LOADED = (pandas, pyarrow, types, plan_data_source_read, write_into_data_source, source)
"""What tasks need. Spark itself loads pandas with Arrow."""

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
