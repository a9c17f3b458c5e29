"""What is left of the story in its folder: report.html, report.json, and pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from motet.bench import figures
from motet.demo import page, pictures, promises
from motet.demo.promises import Promise

if TYPE_CHECKING:
    from motet.demo.outcome import Outcome

PAGE, FIGURES, PICTURES = "report.html", "report.json", "pictures"
VERSION: Final = 1


def write(told: Outcome, found: Sequence[Promise]) -> dict[str, Any]:
    """All of it; what report.json says."""
    folder = told.wish.folder
    drawn = pictures.draw(told, folder / PICTURES)
    page.write(told, found, drawn, folder / PAGE)
    said = as_dict(told, found)
    (folder / FIGURES).write_text(json.dumps(said, indent=2, default=str) + "\n", encoding="utf-8")
    return said


def as_dict(told: Outcome, found: Sequence[Promise]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "kept": promises.kept(found),
        "promises": [each.to_json() for each in found],
        "audit": told.audit.as_dict() if told.audit is not None else None,
        "timeline": [
            {"at_s": round(each.at_s, 3), "what": each.what} for each in told.chronicle.moments
        ],
        "seconds": round(told.took_s, 1),
        "report": str(told.wish.folder / PAGE),
        "machine": figures.machine(),
    }
