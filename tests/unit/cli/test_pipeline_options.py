"""What `motet pipeline` says before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.cli import pipeline
from motet.cli.console import FAILED, MISUSE
from motet.cli.main import run
from motet.spark.archive import Manifest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("archive --out {}/a", "no broker is named"),
        ("archive --out {}/a --compact", "is not an archive"),
        ("replay {}/none.parquet", "no broker is named"),
        ("replay {}/none.parquet --broker motet://127.0.0.1:9", "does not exist"),
        ("replay {}/none.parquet --broker motet://127.0.0.1:9 --speed fast", "a speed is like 10x"),
        ("replay {}/none.parquet --broker motet://127.0.0.1:9 --column case", "is not NAME=COLUMN"),
        ("insight", "no source of events is named"),
        ("insight {}/log --follow", "--follow needs a live stream"),
        ("workload workflow 3 --out {}", "is not empty"),
    ],
)
def test_misuse_is_told_before_spark_starts(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "something").touch()

    def start(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(pipeline, "started", start)
    assert run(["pipeline", *words.format(tmp_path).split()]) == MISUSE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--size 9", "--size cannot"),
        ("--seed 1", "--seed cannot"),
        ("--size 9 --seed 7", "--size and"),
    ],
)
def test_demo_options_that_contradict_a_given_log_are_misuse(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--log", "cases.csv", *words.split()]) == MISUSE
    told = capsys.readouterr().err
    assert said in told
    assert "all cases of cases.csv are shown" in told


def test_an_archive_has_the_columns_that_it_began_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pipeline, "started")
    Manifest(tmp_path).begin("", ("level:int", "room:text"), {})
    words = ["pipeline", "archive", "--broker", "motet://127.0.0.1:9", "--out", str(tmp_path)]
    assert run([*words, "--columns", "level:int"]) == MISUSE
    said = (
        "room:text is missing: continue with --columns level:int,room:text, or use another folder"
    )
    assert said in capsys.readouterr().err
    assert run([*words, "--columns", "level"]) == MISUSE
    assert "column level has no known type; write level:int" in capsys.readouterr().err


def test_without_pyspark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    status = run(["pipeline", "workload", "workflow", "3", "--out", str(tmp_path)])
    assert status in (FAILED, MISUSE)
    assert "pip install 'motet[spark]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.25, "0.2 s"), (90, "1.5 min"), (5400, "1.5 h"), (200_000, "2.3 d")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert pipeline.duration(seconds) == text
