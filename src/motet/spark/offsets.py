"""How far a query is, as Spark keeps it: JSON, and always the same text for the same place.

    {"filter": "5f70…", "p": {"B1.1": 1793…, "B2.1": 1793…}, "v": 1}

Each tick is the first one that was not read. Spark compares offsets as text, so keys are sorted.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from motet.errors import MisuseError
from motet.model import Filter

VERSION: Final = 1
MARK_CHARS: Final = 16

Vector = dict[str, int]
"""By pubend, the first tick that is not read."""


def mark_of(filter: Filter | None) -> str:
    """The same for filters that have the same canonical text."""
    return "" if filter is None else sha256(str(filter).encode()).hexdigest()[:MARK_CHARS]


def offset_at(vector: Vector, mark: str) -> dict[str, Any]:
    return {"filter": mark, "p": {name: vector[name] for name in sorted(vector)}, "v": VERSION}


def vector_at(offset: dict[str, Any], mark: str) -> Vector:
    """What an offset says, if it is of a query with this filter."""
    if offset.get("v") != VERSION:
        raise MisuseError(
            f"the checkpoint has an offset of version {offset.get('v')}, and this release reads "
            f"version {VERSION}; go on with the release that wrote it, or begin a new checkpoint"
        )
    if offset["filter"] != mark:
        raise MisuseError(
            "the filter of this query is not the one that its checkpoint was begun with: events "
            "before the checkpoint were chosen by another filter; go on with that filter, or begin "
            "a new checkpoint"
        )
    return dict(offset["p"])
