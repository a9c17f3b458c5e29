"""`motet pipeline`, from a workload to insight, in one overlay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import motet
from motet.cli.ending import FAILED, FINE
from motet.cli.main import run
from motet.spark.archive import Manifest
from tests.spark.ground import Pair

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]


def test_from_a_workload_to_insight(
    spark: SparkSession, busy: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = busy.brokers[0].address
    log, kept, found = (str(tmp_path / name) for name in ("log", "kept", "found"))

    def said(*words: str, status: int = FINE) -> dict[str, Any]:
        assert run(["pipeline", *words, "--json"]) == status
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    made = said("workload", "workflow", "30", "--out", log, "--seed", "4", "--agents", "5")
    assert spark.read.parquet(log).count() == made["rows"]
    names = ("--work", str(tmp_path / "work"), "--broker", url)
    assert said("replay", log, *names)["published"] == made["rows"]
    assert said("replay", log, *names)["published"] == 0

    space = "agent like 'agent-00%' and case is not null"
    keep = ("archive", "--out", kept, "--broker", url)
    told = said(*keep, "--available-now", "--filter", space, "--compact", "--prove")
    assert told["proof"]["holds"]
    assert told["rows"] >= made["rows"]

    first = said("insight", kept, "--out", found, "--publish", url)
    assert first["events"] == told["rows"]
    assert [Path(plot).name for plot in first["plots"]][:2] == ["steps.png", "handovers.png"]
    wanted = "insight = 'step'"
    rows = [
        row
        for batch in motet.read_sync(url, filter=wanted, columns=["attributes"])
        for row in batch.rows()
    ]
    assert len(rows) >= len(first["steps"])
    assert run(["pipeline", "insight", log, "--out", found, "--no-plots"]) == FINE
    assert "hand-overs" in capsys.readouterr().out

    manifest = Manifest(Path(kept))
    version = manifest.newest()
    emptied = msgspec.structs.replace(version, number=version.number + 1, files=())
    assert manifest._publish(emptied)
    proof = said(*keep, "--prove", status=FAILED)["proof"]
    assert proof["differences"] == {"missing": told["rows"]}
    assert run(["pipeline", *keep, "--prove"]) == FAILED
    assert f"DIFFERS: {told['rows']:,} events are missing" in capsys.readouterr().out
