"""Unusual input on the command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from motet.cli.main import run
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["pub", "motet://127.0.0.1:1", "a=" + "9" * 5000], "an integer of 5000 digits"),
        (
            ["broker", "--name", "B1", "--listen", "127.0.0.1:0", "--link", "B2=garbage"],
            "is not an address",
        ),
        (["drain", "motet://127.0.0.1:1", "B1", "--to", " , "], "names no broker"),
    ],
)
def test_a_clear_line_and_status_2(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert problem in capsys.readouterr().err


def test_closed_standard_streams_are_no_reason_to_crash() -> None:
    def close_all() -> None:
        for number in range(3):
            os.close(number)

    command = [sys.executable, "-m", "motet", "sub", "motet://127.0.0.1:1", "true"]
    assert (
        subprocess.run(command, preexec_fn=close_all, timeout=PATIENCE_S, check=False).returncode
        == 1
    )
