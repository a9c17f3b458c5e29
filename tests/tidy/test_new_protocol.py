"""A new protocol adds files of its own and rows in tables: a toy is added to a copy of the
repository, and works there. See `tools/new_protocol.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import house, new_protocol
from tools.source import ROOT, Source

MOST_TOUCHED = 6
TABLES = {
    "docs/architecture.md",
    "src/motet/broker/core/protocols.py",
    "src/motet/protocol/frames.py",
    "src/motet/testing/words.py",
    "tools/rooms.py",
}
TESTS = (
    "tests/unit/notes",
    "tests/unit/broker/test_core.py",
    "tests/unit/broker/test_image.py",
    "tests/unit/runtime/test_codec.py",
    "tests/unit/runtime/test_golden_frames.py",
    "tests/unit/runtime/test_traits.py",
    "tests/unit/session/test_session_handover.py",
    "tests/tidy/test_imports.py",
    "tests/tidy/test_rooms.py",
    "tests/tidy/test_style.py",
)
"""The toy's own tests, and those that compare all protocols with lists."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the toy."""
    tree = tmp_path_factory.mktemp("tree")
    new_protocol.copy_to(tree)
    assert new_protocol.changed_in(tree) == []
    new_protocol.add_to(tree)
    return tree


def test_a_toy_protocol_works_and_every_list_of_protocols_accepts_it(tree: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *TESTS]
    words += ["-k", "not build_products"]  # asks git, and the copy is no repository
    done = subprocess.run(
        words,
        cwd=tree,
        env=new_protocol.surroundings(tree),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_protocol_touches_few_existing_files_and_only_tables(tree: Path) -> None:
    changed = new_protocol.changed_in(tree)
    assert set(changed) == TABLES
    assert len(changed) <= MOST_TOUCHED


def test_make_house_counts_the_files_that_changed(tree: Path) -> None:
    rows = {row.what: row for row in house.static_rows(Source())}
    row = rows["existing files that a new protocol touches"]
    assert (row.value, row.goal) == (len(new_protocol.changed_in(tree)), MOST_TOUCHED)


def test_a_file_that_is_touched_is_seen(tree: Path) -> None:
    name = "tests/unit/broker/test_core.py"
    assert name not in new_protocol.changed_in(tree)
    try:
        (tree / name).write_text("changed")
        assert name in new_protocol.changed_in(tree)
        (tree / name).unlink()
        assert name in new_protocol.changed_in(tree)
    finally:
        (tree / name).write_bytes((ROOT / name).read_bytes())
