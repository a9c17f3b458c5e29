"""Workers of Spark whose tasks were cancelled."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from motet.spark.daemon import UNHEARD, quietly

CANCELLED = """
import socket
from typing import IO

import pyspark.worker
from pyspark import daemon

from motet.spark.daemon import silence_workers

ours, theirs = socket.socketpair()

def main(infile: IO[bytes], outfile: IO[bytes]) -> None:
    outfile.write(b"the last result")
    theirs.close()

pyspark.worker.main = main
silence_workers()
raise SystemExit(daemon.worker(ours, True))
"""
"""A worker whose task is cancelled before its last result is written."""


def test_a_worker_without_a_listener_prints_nothing() -> None:
    def work(connection: socket.socket, is_authenticated: bool) -> int:
        if is_authenticated:
            raise BrokenPipeError
        return connection.fileno()

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert quietly(work)(ours, False) == ours.fileno()
        assert quietly(work)(ours, True) == UNHEARD


def test_other_errors_of_a_worker_are_raised() -> None:
    def work(connection: socket.socket, is_authenticated: bool) -> int:
        raise ValueError(f"{connection.fileno()} {is_authenticated}")

    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ValueError, match="True"):
        quietly(work)(ours, True)


def test_a_cancelled_result_prints_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CANCELLED], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (UNHEARD, "", "")
