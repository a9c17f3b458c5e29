"""The habits of the house that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "motet"
FILES = sorted([*SRC.rglob("*.py"), *(ROOT / "labs").rglob("*.py")])
ROOMS = [path.parent for path in FILES if path.name == "__init__.py" and path.parent != SRC]

LONGEST_FUNCTION = 60

CONCEPTS = {
    "matching": "overlap",
    "ordering": "topic",
    "reading": "late reader",
    "routing": "PRT",
    "sealing": "seal",
    "sequencing": "sequencer",
    "staging": "staged",
}
"""Names of modules and folders that are gerunds, each with the word of the glossary it is about."""
OF_THE_TRADE = {"testing"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_function_fits_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Parameters of a command are declarations, and its docstring is its help page.
            start = node.body[ast.get_docstring(node) is not None :] or node.body
            length = (node.end_lineno or 0) - start[0].lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_come_from_the_domain(path: Path) -> None:
    nouns = re.compile(r"(Manager|Helper|Util|Utils)$")
    assert not nouns.search(path.stem.title())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            assert not nouns.search(node.name), node.name


def gerunds(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.endswith("ing")}


def test_modules_are_named_by_nouns() -> None:
    """A gerund such as `keeping` does not say what is in a module."""
    names = {path.stem for path in FILES} | {room.name for room in ROOMS}
    found = gerunds(names)
    assert found == CONCEPTS.keys() | OF_THE_TRADE, "name what the module has, or what it is"
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    for word in CONCEPTS.values():
        assert f"**{word}**" in glossary, word
    assert gerunds(["judging", "judgement", "ring_buffer"]) == {"judging"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module needs a docstring"


@pytest.mark.parametrize("room", ROOMS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_room_has_a_card(room: Path) -> None:
    card = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    for words in ("lives here", "may import", "must never"):
        assert words in card.lower(), f"the card of {room.name} does not say what {words}"
    assert re.search(r"pytest tests/|make test|motet ", card), "how is this room tested?"


def test_dependencies_are_pinned_without_an_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", line), line


def test_no_test_is_skipped() -> None:
    here = Path(__file__)
    for path in (ROOT / "tests").rglob("*.py"):
        if path != here:
            assert not re.search(r"mark\.(skip|xfail)\b|pytest\.skip\(", path.read_text()), path


def test_the_tree_is_clean_of_build_products() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in listed:
        assert not name.endswith((".so", ".pyc", ".log", ".o")), name
