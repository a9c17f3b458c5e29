"""`motet sequencer`: what it refuses before it opens a folder."""

from __future__ import annotations

import pytest

from motet.cli import console
from motet.cli.main import run

HERE = "motet://127.0.0.1:7720"
THERE = "motet://127.0.0.1:7721"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--listen", HERE, "--standby", HERE], "--standby motet://127.0.0.1:7720 is where this"),
        (["--listen", HERE, "--witness", HERE], "--witness motet://127.0.0.1:7720 is where this"),
        (["--listen", HERE, "--standby", THERE, "--witness", THERE], "are the same address"),
        (["--listen", HERE, "witness"], "--listen stands before witness"),
        (["--name", "S2", "promote", HERE], "--name stands before promote"),
    ],
)
def test_addresses_and_options_in_the_wrong_place(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sequencer", *words]) == console.MISUSE
    assert problem in capsys.readouterr().err


def test_nobody_can_be_promoted_where_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sequencer", "promote", "motet://127.0.0.1:1"]) == console.FAILED
    said = capsys.readouterr().err
    assert "motet://127.0.0.1:1 cannot be asked" in said
    assert "motet up" not in said
