"""Examples of the frames of `protocol/cell`."""

from __future__ import annotations

from motet.protocol.cell.messages import (
    Facts,
    FactsAck,
    ImagePart,
    InwardFrame,
    MemberFrame,
    MemberHello,
    Shared,
    SidewaysFrame,
    Standing,
)
from motet.protocol.delivery.messages import AckUp, Nack
from motet.protocol.frames import PROTOCOL_VERSION, Frame

SAID = MemberFrame("b2", 1, 5, 4, 3, 2, Nack("B1.7", ((1, 2),)), "b1")

FRAMES: list[Frame] = [
    MemberHello(PROTOCOL_VERSION, "B1", "b2", True),
    Standing(True, ("B2", "B3")),
    SAID,
    SidewaysFrame("B2", SAID),
    InwardFrame("B2", SAID),
    Shared("B2", 5, 4, 3, AckUp("B1.7", 9)),
    ImagePart(7, 1, 2, b"part"),
    Facts(7, (b"one", b"two"), 6),
    FactsAck(8),
]
