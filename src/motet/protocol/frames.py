"""The union of all frames on the wire, and the protocol version that both sides must use."""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.cell.messages import CellFrame
from motet.protocol.hosted.messages import HostedFrame
from motet.protocol.link.messages import LinkFrame
from motet.protocol.mobility.messages import MobilityFrame
from motet.protocol.reading.messages import ReadingFrame
from motet.protocol.sequencing.messages import SequencingFrame
from motet.protocol.sequencing.standby import StandbyFrame
from motet.protocol.session.messages import SessionFrame
from motet.protocol.sinks.messages import StagingFrame
from motet.protocol.traits import ANYBODY, SMALL_BYTES, frame

PROTOCOL_VERSION = 2


@frame(senders=ANYBODY, soft=True, most_bytes=SMALL_BYTES)
class Beat(Struct, tag="beat", array_like=True, frozen=True):
    """A heartbeat without content; the driver sends it and consumes it."""


Frame = (
    LinkFrame
    | SessionFrame
    | ReadingFrame
    | StagingFrame
    | CellFrame
    | MobilityFrame
    | HostedFrame
    | SequencingFrame
    | StandbyFrame
    | Beat
)
