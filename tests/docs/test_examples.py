"""Every Python example in the README and the docs runs; every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASYNC = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")


def examples(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match.group(1) == language:
                line = text.count("\n", 0, match.start()) + 2
                found.append((f"{page.relative_to(ROOT)}:{line}", match.group(2)))
    return found


PYTHON = examples("python")


def test_the_documentation_has_examples() -> None:
    assert len(PYTHON) >= 10


@pytest.mark.parametrize(("place", "code"), PYTHON, ids=[place for place, _ in PYTHON])
def test_python_example(place: str, code: str, tmp_path: Path) -> None:
    is_test = re.search(r"^(async )?def test_", code, re.MULTILINE)
    script = tmp_path / ("test_example.py" if is_test else "example.py")
    script.write_text(code)
    runner = ["-m", "pytest", "-q", *ASYNC] if is_test else []
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", *runner, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{place}\n{done.stderr}"
    assert "Traceback" not in done.stderr, f"{place}\n{done.stderr}"


@pytest.mark.parametrize(("place", "text"), examples("toml"), ids=lambda value: value[:30])
def test_toml_example(place: str, text: str) -> None:
    from motet import Topology
    from motet.client.plan import parse_plan
    from motet.sequencer.sites_file import Sites

    if "[[step]]" in text:
        assert parse_plan(text, place).in_order()
    elif "[sites." in text:
        assert Sites.parse(text, place).places
    else:
        assert Topology.parse(text, place).brokers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_the_guarantees_name_files_that_exist() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    paths = re.findall(r"`((?:src|tests)/[^`]+|motet/[^`]+)`", text)
    assert len(paths) >= 10
    for path in paths:
        place = ROOT / "src" / path if path.startswith("motet/") else ROOT / path
        assert place.exists(), path
