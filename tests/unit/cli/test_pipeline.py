"""`motet pipeline`: what is said and the exit status, without starting Spark."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from motet.audit.files import write_part
from motet.audit.verdicts import Audit, Finding
from motet.cli import pipeline
from motet.cli.main import run

session = import_module("motet.spark.session")  # the package has a function of that name
BROKEN = Audit(
    {"order": 1000}, [Finding("order", "tick order", 7, ["tick 3 came after tick 4"], "r1")]
)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_part(tmp_path, "deliveries", [{"nth": 1}], "p")
    return str(tmp_path)


def judging(found: Audit, patch: pytest.MonkeyPatch) -> None:
    """The audit is as good as done."""

    def started(what: str, master: str | None, alone: dict[str, str]) -> Any:
        assert (what, master, bool(alone)) == ("audit", None, True)
        return Mock()

    patch.setattr(pipeline, "started", started)
    patch.setattr("motet.spark.audit.audit", lambda *_, **__: found)


def test_a_broken_promise_is_told_with_its_proof(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judging(BROKEN, monkeypatch)
    assert run(["pipeline", "audit", folder]) == 1
    said = capsys.readouterr().out
    assert "tick 3 came after tick 4" in said
    assert "and 6 more" in said
    assert "VIOLATED" in said


def test_programs_get_json(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judging(Audit({"order": 3}), monkeypatch)
    assert run(["pipeline", "audit", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clean"] is True


def test_a_folder_without_a_history_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "audit", str(tmp_path)]) == 2
    assert "has no history" in capsys.readouterr().err
    assert run(["pipeline", "audit", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_missing_java_is_named_with_the_command_that_installs_it(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session.shutil, "which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run(["pipeline", "audit", folder]) != 0
    assert session.INSTALL_JAVA in capsys.readouterr().err
