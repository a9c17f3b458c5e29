"""Rooms keep to the table in `tools/rooms.py`, and classes to a size that one can know."""

from __future__ import annotations

from functools import cache

import pytest

from tools.rooms import MAY_IMPORT, PAGE, imports, may_import, page_with, room_of, unused
from tools.source import Source

DEEPEST = 2
MOST_PUBLIC_METHODS = 25
MOST_SHARED_NAMES = 3
"""Class names that are defined more than once."""


@cache
def source() -> Source:
    return Source()


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of(source().relative(path)) for path in source().files}
    assert rooms == MAY_IMPORT.keys()


def test_no_room_imports_another_except_as_the_table_allows() -> None:
    found = imports(source())
    assert not {pair for pair in found if not may_import(*pair)}, "not in tools/rooms.py"


def test_every_permission_of_the_table_is_used() -> None:
    found = imports(source()).keys()
    assert not unused(found), "remove it from tools/rooms.py"
    fewer = {pair for pair in found if pair != ("protocol/routing", "matching")}
    assert unused(fewer) == {("protocol/routing", "matching")}
    without = {pair for pair in found if pair[0] != "protocol"}
    assert ("protocol", "protocol/*") in unused(without)


def test_own_classes_inherit_over_two_levels_at_most() -> None:
    found = {
        name
        for name in source().classes
        if source().depth(name) > DEEPEST and not source().is_error(name)
    }
    assert not found, f"more than {DEEPEST} levels of inheritance"


def test_a_class_has_few_public_methods() -> None:
    found = {
        name
        for name in source().classes
        if len(source().public_methods(name)) > MOST_PUBLIC_METHODS
    }
    assert not found, f"more than {MOST_PUBLIC_METHODS} public methods"


def test_a_class_lives_in_one_file() -> None:
    """A base class that nobody else uses is a part of the class that inherits from it."""
    assert not source().split, "a part of this class is in another file"


def test_a_class_name_has_one_meaning() -> None:
    twice = source().defined_twice
    assert len(twice) <= MOST_SHARED_NAMES, twice


def test_the_map_of_rooms_in_the_docs_is_that_of_the_source() -> None:
    text = PAGE.read_text()
    assert page_with(text, source()) == text, "run `python -m tools.rooms --write`"


@pytest.mark.parametrize(
    ("room", "other", "allowed"),
    [
        ("model", "errors", True),
        ("model", "runtime", False),
        ("runtime", "protocol/link", True),
        ("broker/core", "runtime", False),
        ("testing", "broker/core", True),
        ("testing", "spark/audit", False),
        ("cli", "spark/audit", True),
    ],
)
def test_the_table_is_read_like_this(room: str, other: str, allowed: bool) -> None:
    assert may_import(room, other) == allowed
