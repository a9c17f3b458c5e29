"""The programs in `examples/` run, and find that what they show is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "dispatching.py": "every update was handled by exactly one side",
    "consolidation.py": "every update was handled by exactly one side",
    "moving_agent.py": "A1 has followed its work: B4 → B1 → B2",
}


def test_all_programs_are_run() -> None:
    found = {each.name for each in EXAMPLES.glob("*.py") if "__main__" in each.read_text()}
    assert found == set(SHOWN)


@pytest.mark.parametrize(("program", "shown"), SHOWN.items(), ids=list(SHOWN))
def test_an_example(program: str, shown: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / program)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
    assert "Traceback" not in done.stderr, done.stderr
