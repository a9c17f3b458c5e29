"""`motet pipeline`, from a workload to insight, in one overlay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from pyspark.sql import SparkSession

import motet
from motet.audit.verdicts import Audit
from motet.cli.console import FAILED, FINE, MISUSE
from motet.cli.main import run
from motet.cli.pipeline import WorkloadKind, pipeline
from motet.spark.archive import Manifest
from tests.spark.ground import Lent, Pair

pytestmark = pytest.mark.usefixtures("spark")


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


@pytest.mark.parametrize("kind", WorkloadKind)
def test_every_kind_of_workload_is_generated(
    kind: WorkloadKind, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    few = ("--topics", "12", "--sites", "2", "--agents", "2", "--processes", "1")
    assert run(["pipeline", "workload", kind, "3", "--out", out, *few, "--json"]) == FINE
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["size"], told["folder"]) == (kind, 3, out)
    assert spark.read.parquet(out).count() == told["rows"] > 0


def test_histories_of_the_simulator_are_audited(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All around the audit itself, which `test_audit` tests, and which takes long."""
    folder = tmp_path / "histories"
    made = ["sim", "--seeds", "0", "--profile", "transactions", "--no-mutations", "--jobs", "1"]
    assert run([*made, "--history", str(folder), "--json"]) == FINE
    capsys.readouterr()

    def judge(session: Any, directory: str, tell: Callable[[str], None], slack_s: float) -> Audit:
        tell("reading")
        assert (session.version, Path(directory), slack_s) == (spark.version, folder, 0.5)
        return Audit(checked={"exactly-once": 7}, seconds=1.5)

    monkeypatch.setattr("motet.spark.audit.audit", judge)
    monkeypatch.setattr("motet.cli.pipeline.started", lambda *_: Lent(spark))
    words = ["pipeline", "audit", str(folder), "--slack", "0.5"]
    assert run([*words, "--json"]) == FINE
    told = json.loads(capsys.readouterr().out)
    assert told["clean"] is True
    assert told["guarantees"]["exactly-once"] == {"checked": 7, "violations": 0}
    assert run(words) == FINE
    assert "exactly-once" in capsys.readouterr().out
    assert run(["pipeline", "audit", str(tmp_path / "nowhere")]) == MISUSE


def test_every_command_is_run_here() -> None:
    """A new command is added above, so that it cannot break unnoticed."""
    group = typer.main.get_command(pipeline)
    assert set(group.commands) == {
        "workload",
        "archive",
        "insight",
        "replay",
        "audit",
        "placement",
    }  # type: ignore[attr-defined]
