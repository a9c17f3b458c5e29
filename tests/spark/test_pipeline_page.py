"""What the page on the pipeline shows, runs; and the commands on it are those that there are."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession

from motet.cli.main import app
from tests.spark.ground import Pair

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
COMMANDS = re.findall(r"^motet (pipeline .*)$", PAGE, re.MULTILINE)


def test_the_page(spark: SparkSession, busy: Pair, tmp_path: Path) -> None:
    url = busy.brokers[0].address
    known: dict[str, Any] = {"spark": spark, "url": url, "folder": str(tmp_path)}
    known["asyncio"] = asyncio
    for code in re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(code, known)
    assert known["told"].published == known["plan"].rows
    assert known["proof"].holds
    assert known["found"].cases >= 40


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line: str) -> None:
    """Each is understood as far as its options go: `--help` is asked for instead of the work."""
    words = shlex.split(line)
    group: Any = typer.main.get_command(app)
    for word in words[:2]:
        group = group.commands[word]
    options = {name for each in group.params for name in (*each.opts, *each.secondary_opts)}
    used = {word for word in words if word.startswith("--")}
    assert used <= options


def test_the_page_names_every_command() -> None:
    group: Any = typer.main.get_command(app)
    for name in ("workload", "archive", "replay", "insight"):
        assert name in group.commands["pipeline"].commands
        assert f"motet pipeline {name}" in PAGE
