"""Examples of the frames of `protocol/routing`."""

from __future__ import annotations

from motet.protocol.frames import Frame
from motet.protocol.link.messages import Control
from motet.protocol.routing.messages import (
    Advertise,
    ClientGone,
    ClientHere,
    Complete,
    Confirmed,
    Echo,
    Join,
    PubendGone,
    PubendHere,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from tests.unit.examples import FILTER, OP

FRAMES: list[Frame] = [
    Control(
        7,
        (
            Advertise(OP, FILTER, echo=True, probe=True),
            Unadvertise(OP, OP),
            Subscribe(OP, FILTER),
            Unsubscribe(OP),
            Echo(OP),
            ClientHere("c", "B1-7"),
            ClientGone("c", "B1-7"),
            Complete(False),
            PubendHere("B1.7", ("B2", "B1")),
            PubendGone("B1.7"),
            Confirmed(OP),
            Join(OP, "B1.7", 9),
        ),
    ),
]
