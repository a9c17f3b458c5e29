"""Examples of the frames of `protocol/hosted`."""

from __future__ import annotations

from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.hosted.messages import (
    CheckpointKept,
    ContainerHello,
    HaltHosted,
    HostedCheckpoint,
    HostedHalted,
    HostedHello,
    HostedState,
    Registered,
    RunHosted,
)
from motet.protocol.session.messages import ClientHello
from tests.unit.examples import BODY

OUTPUTS = (bytes(BODY),)

FRAMES: list[Frame] = [
    ContainerHello(PROTOCOL_VERSION),
    Registered(("agent", "counter"), ("agent",)),
    RunHosted("agent"),
    HaltHosted("agent"),
    HostedHalted("agent"),
    HostedHello(PROTOCOL_VERSION, ClientHello(PROTOCOL_VERSION, "agent", keep_s=60.0)),
    HostedState(),
    HostedState(3, b"state", {"B1.1": 7}, OUTPUTS, 9),
    HostedCheckpoint(4, {"B1.1": 8}, b"state", 8, OUTPUTS),
    HostedCheckpoint(5, {"B1.1": 9}),
    CheckpointKept(4),
]
