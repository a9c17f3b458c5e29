"""Spark's daemon for Python workers, with Motet loaded. Workers are forked from it, and would
otherwise load all modules themselves.

Spark makes a worker collect garbage after every task, and the next task waits for that. Modules
loaded here are never freed, so they are exempt: they are most of a worker's objects.

A worker whose task was cancelled, for example because a query was stopped, can no longer write its
result. Spark would print a traceback for that on the console.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable

import pandas
import pyarrow.compute
from pyspark import daemon
from pyspark.sql.pandas import types
from pyspark.sql.worker import plan_data_source_read, write_into_data_source

from motet.spark import source

LOADED = (pandas, pyarrow, types, plan_data_source_read, write_into_data_source, source)
"""Modules that tasks need. Spark itself loads pandas with Arrow."""
RAISE_IF_NOT_FLUSHED = "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"
"""Without this variable, Spark prints a traceback if the last result cannot be written."""

Worker = Callable[[socket.socket, bool], int]
UNHEARD = 1
"""The exit code of a worker whose connection is gone; Spark does not reuse it."""


def quietly(worker: Worker) -> Worker:
    def work(connection: socket.socket, is_authenticated: bool) -> int:
        try:
            return worker(connection, is_authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return UNHEARD

    return work


def silence_workers() -> None:
    os.environ[RAISE_IF_NOT_FLUSHED] = "true"
    daemon.worker = quietly(daemon.worker)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    silence_workers()
    daemon.manager()
