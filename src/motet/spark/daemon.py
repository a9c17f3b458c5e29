"""Spark's daemon for Python workers, with Motet loaded. Workers are forked from it for tasks: each
would load all this again.

Spark lets a worker collect its garbage behind every task, and the next task waits for that. What
is loaded here stays for ever, so it is not looked at: that is most of what a worker has.

A worker whose task was called off, when a query was stopped perhaps, finds nobody who listens any
more, and would tell that to the console at length.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable

import pandas
import pyarrow.compute
from pyspark import daemon
from pyspark.sql.pandas import types
from pyspark.sql.worker import plan_data_source_read, write_into_data_source

from motet.spark import source

LOADED = (pandas, pyarrow, types, plan_data_source_read, write_into_data_source, source)
"""What tasks need. Spark itself loads pandas with Arrow."""

Worker = Callable[[socket.socket, bool], int]
UNHEARD = 1
"""The exit code of a worker that nobody listens to: it is not used again."""


def quietly(worker: Worker) -> Worker:
    def work(connection: socket.socket, is_authenticated: bool) -> int:
        try:
            return worker(connection, is_authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return UNHEARD

    return work


if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    daemon.worker = quietly(daemon.worker)
    daemon.manager()
