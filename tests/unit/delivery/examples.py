"""Examples of the frames of `protocol/delivery`."""

from __future__ import annotations

from motet.model import OpId
from motet.protocol.delivery.messages import AckExpected, AckUp, Delivered, Knowledge, Nack
from motet.protocol.delivery.spans import CutRecord, Span, StartRecord
from motet.protocol.frames import Frame
from tests.unit.examples import OP, PUBLICATION, TX

CUT = CutRecord(5, TX, ((OP, 5, False), (OP, 6, True)), ("B1.7",), 6, 7)

FRAMES: list[Frame] = [
    Knowledge("B1.7", Span(5, 6, [6], [PUBLICATION], (CUT,))),
    Delivered("B1.7", 9, [5, 9], [PUBLICATION] * 2, (), [(1,), (1, 2)], ((2, 4),)),
    Knowledge(
        "B1.7",
        Span(3, 9, [5], [PUBLICATION], (StartRecord(4, OpId("c", "B1-7.1", 2)),)),
        True,
        True,
        3,
    ),
    Nack("B1.7", ((1, 2), (4, 9)), 3),
    AckUp("B1.7", 9),
    AckExpected("B1.7", 9),
]
