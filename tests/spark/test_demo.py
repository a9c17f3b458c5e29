"""`motet demo` from the beginning to the end, as a user sees it: `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from motet_labs.demo.pipeline import CONF

SMALL = ("--size", "60", "--seconds", "10")
BOUND_S = 600
LOG = """case,step,agent,time
{rows}
"""


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "motet", "demo", "--json", *options)
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S)


def counts(told: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(each["section"], each["name"]): each["count"] for each in told["promises"]}


@pytest.mark.parametrize("name", ["numRecentProgressUpdates", "minBatchesToRetain"])
def test_spark_forgets_no_batch_of_a_long_demo(spark: SparkSession, name: str) -> None:
    """Else batches would look as if they had never been committed. Spark knows the name."""
    usual = spark.conf.get(f"spark.sql.streaming.{name}")
    assert usual is not None
    assert int(usual) < int(CONF[f"spark.sql.streaming.{name}"])


@pytest.mark.soak
def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    ran = demo(*SMALL, "--report", str(folder))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    assert told["kept"] is True
    assert told["audit"]["clean"] is True
    found = counts(told)
    published = found["events of the log", "published"]
    assert found["events of the log", "delivered"] == 3 * published > 0
    assert found["Spark reads exactly once", "archived"] == published
    assert found["Spark writes back atomically", "batches received whole"] > 1
    assert "Every promise was kept" in (folder / "report.html").read_text()
    assert {path.stem for path in (folder / "pictures").iterdir()} >= {"flow", "hands", "steps"}


@pytest.mark.soak
def test_the_demo_replays_a_foreign_log(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = (
        f"{case},step {step},agent {case % 3},2026-01-{step + 1:02} 08:{case:02}:00"
        for case in range(40)
        for step in range(9)
    )
    log.write_text(LOG.format(rows="\n".join(rows)))
    ran = demo("--log", str(log), "--seconds", "8", "--report", str(tmp_path / "report"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = counts(json.loads(ran.stdout))
    assert found["events of the log", "published"] == 40 * 9
    assert found["Spark writes back atomically", "events counted by the last result"] == 40 * 9


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gone.csv", None, "does not exist"),
        ("log.txt", "case,step", "no logs to replay"),
    ],
)
def test_an_invalid_log_is_refused_before_the_demo_starts(
    name: str, text: str | None, said: str, tmp_path: Path
) -> None:
    log, folder = tmp_path / name, tmp_path / "report"
    if text is not None:
        log.write_text(text)
    ran = demo("--log", str(log), "--report", str(folder))
    assert ran.returncode == 2
    assert said in ran.stderr
    assert not folder.exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    ran = demo("--report", str(tmp_path))
    assert ran.returncode == 2
    assert "is not empty" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_without_java_the_command_that_helps_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    ran = demo("--report", str(tmp_path / "report"))
    assert ran.returncode == 1
    assert "apt-get install" in ran.stderr
    assert not (tmp_path / "report").exists()
