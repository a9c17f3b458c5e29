"""Examples of the frames of `protocol/reading`."""

from __future__ import annotations

from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.reading.messages import (
    CursorAccount,
    CursorRequest,
    CursorSet,
    Described,
    DescribeRequest,
    LogStep,
    Outline,
    OutlineRequest,
    PubendAccount,
    ReadAnswer,
    ReadRequest,
    Refused,
    Wanted,
)
from tests.unit.examples import FILTER

FRAMES: list[Frame] = [
    ReadRequest(PROTOCOL_VERSION, 1, "B1.7", 3, 9, (Wanted("tick"),), FILTER, ("event",), 5),
    DescribeRequest(PROTOCOL_VERSION, 2),
    OutlineRequest(PROTOCOL_VERSION, 3, "B1.7", 1, 9, 10, 11, 12, 13, True),
    Outline(
        3, "B1.7", 1, 9, 9, False, (LogStep(4, 3, 99), LogStep(9, 2, 9, 7, "a/1/2", ("B1.7",)))
    ),
    CursorRequest(PROTOCOL_VERSION, 3, "B1.7", "spark", 9),
    ReadAnswer(
        *(1, "B1.7", 3, 9, 9, False, 1, 4),
        *((Wanted("level", "level", "int"),), {"level": 2}, b"arrow"),
    ),
    Described(
        2, "B1", (PubendAccount("B1.7", 1, 9, 4, 3, 2, 1, 0, 0, (CursorAccount("spark", 9, 1.5),)),)
    ),
    CursorSet(3),
    Refused(4, "MisuseError", "not so"),
]
