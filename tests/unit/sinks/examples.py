"""Examples of the frames of `protocol/sinks`."""

from __future__ import annotations

from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.sinks.messages import (
    Attempt,
    Dropped,
    DropRequest,
    RowsRequest,
    RowsStaged,
    Sealed,
    SealRequest,
)
from tests.unit.examples import BODY, FILTER, STAGED_PART

ATTEMPT = Attempt("levels", "query", 4, 0, "17-abc")

FRAMES: list[Frame] = [
    RowsRequest(PROTOCOL_VERSION, 1, ATTEMPT, 0, FILTER, [BODY]),
    SealRequest(PROTOCOL_VERSION, 2, ATTEMPT, 1),
    DropRequest(PROTOCOL_VERSION, 3, "levels", "query", 4),
    RowsStaged(1),
    Sealed(2, STAGED_PART),
    Dropped(3),
]
