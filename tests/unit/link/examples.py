"""Examples of the frames of `protocol/link`."""

from __future__ import annotations

from motet.protocol.frames import PROTOCOL_VERSION, Beat, Frame
from motet.protocol.link.messages import ControlAck, Inquire, LinkHello, Publications, Waiting
from tests.unit.examples import OP, PUBLICATION

FRAMES: list[Frame] = [
    Beat(),
    LinkHello(PROTOCOL_VERSION, "B1", 5, 4, 3, True, b"secret"),
    ControlAck(2**40),
    Publications(1, 2, [PUBLICATION] * 3),
    Inquire(OP),
    Waiting(OP, "B1", ("B2", "B3")),
]
