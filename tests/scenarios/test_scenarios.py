"""Races between brokers, as text. `MOTET_REWRITE=1 pytest tests/scenarios` writes new outcomes;
explain the difference in the commit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from motet.testing.scenario import replay

FILES = sorted(Path(__file__).parent.rglob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    told = replay(path)
    if os.environ.get("MOTET_REWRITE"):
        path.write_text(told)
    assert told == path.read_text()
