"""Examples of every frame, for tests that try them all.

Each room brings its own ones: `FRAMES` in `tests/unit/<room>/examples.py`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import msgspec

from motet.model import Filter, OpId, encode_event
from motet.protocol.frames import Frame
from motet.protocol.publication import Publication
from motet.protocol.sinks.messages import StagedPart
from motet.protocol.transactions.messages import Step

OP = OpId("c", "B1-7", 3)
FILTER = Filter.parse("process = 'p1' and step between 1 and 9 and name like 'ab%' or x is null")
BODY = msgspec.Raw(encode_event({"step": 5, "name": "abc", "ok": True, "x": 1.5}, b"payload"))
PUBLICATION = Publication("c", 9, BODY)
TX = "c/B1-7.1/3"
STEPS = (Step("subscribe", "1", "x", FILTER), Step("publish", "2", body=bytes(BODY)))
STAGED_PART = StagedPart(0, "17-abc", 3, 99, 12345)


def frames() -> list[Frame]:
    """The examples of all rooms, in the order of their names."""
    rooms = sorted(path.parent.name for path in Path(__file__).parent.glob("*/examples.py"))
    return [
        frame for room in rooms for frame in import_module(f"tests.unit.{room}.examples").FRAMES
    ]
