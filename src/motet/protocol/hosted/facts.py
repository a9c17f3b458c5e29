"""Facts of hosting: a session belongs to a hosted client, and the checkpoints of that client."""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.hosted.messages import HostedCheckpoint


class HostingBegun(Struct, tag="host", array_like=True, frozen=True):
    """A hosted client has this session. `last`: the last publication received in it."""

    client: str
    epoch: str
    last: int = 0


class CheckpointMade(Struct, tag="checkpoint", array_like=True, frozen=True):
    client: str
    epoch: str
    checkpoint: HostedCheckpoint


HostedFact = HostingBegun | CheckpointMade
