"""Commands that use Spark print their own lines, and none of Spark's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from motet.cli.console import FAILED, FINE

LATE_S = 600
WORKLOAD = ("pipeline", "workload", "workflow", "20", "--master", "local[2]", "--json")


def motet(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "motet", *words],
        capture_output=True,
        text=True,
        timeout=LATE_S,
        env={**os.environ, **environment},
        check=False,
    )


def test_spark_prints_nothing_unless_debug_is_set(tmp_path: Path) -> None:
    done = motet(*WORKLOAD, "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (FINE, "")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["kind"] == "workflow"
    debugged = motet("--debug", *WORKLOAD, "--out", str(tmp_path / "again"))
    assert debugged.returncode == FINE
    assert "log4j" in debugged.stderr, "nobody asked for silence"
    assert debugged.stdout.replace("again", "out") == done.stdout


@pytest.mark.parametrize("stream", [1, 2])
def test_if_java_does_not_start_its_words_are_shown(stream: int, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho no memory for a heap >&{stream}\nexit 1\n")
    java.chmod(0o755)
    done = motet(*WORKLOAD, "--out", str(tmp_path / "out"), JAVA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (FAILED, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.index("no memory for a heap") < done.stderr.index("error: ")
    assert "hint: Java did not start; its output above says why" in done.stderr
