"""The glossary is sorted, and explains each word once."""

from __future__ import annotations

import re
from pathlib import Path

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
ROW = re.compile(r"\| \*\*(?P<word>[^*]+)\*\*(?: \*\(code\)\*)? \| (?P<meaning>.+) \|")


def rows() -> list[tuple[str, str]]:
    table = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| **")]
    found = [ROW.fullmatch(line) for line in table]
    return [(each["word"], each["meaning"]) for each in found if each is not None]


def test_every_row_has_a_word_and_a_meaning() -> None:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    assert len(rows()) == len(lines) - 2  # the head of the table, and the line below it


def test_glossary_entries_are_sorted_and_unique() -> None:
    words = [word.lower() for word, _ in rows()]
    assert words == sorted(set(words))
