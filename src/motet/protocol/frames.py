"""The union of all frames on the wire, and the version that both sides must speak."""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.cell.messages import CellFrame
from motet.protocol.link.messages import LinkFrame
from motet.protocol.reading.messages import ReadingFrame
from motet.protocol.session.messages import SessionFrame
from motet.protocol.sinks.messages import StagingFrame

PROTOCOL_VERSION = 2


class Beat(Struct, tag="beat", array_like=True, frozen=True):
    """Nothing but a sign of life; the driver sends and swallows it."""


Frame = LinkFrame | SessionFrame | ReadingFrame | StagingFrame | CellFrame | Beat
