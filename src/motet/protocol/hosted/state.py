"""Durable state of hosting at one broker."""

from __future__ import annotations

from msgspec import Struct

from motet.protocol.hosted.messages import HostedCheckpoint


class HostedClient(Struct):
    """A client whose code runs in the container of its session's broker."""

    epoch: str
    number: int = 0
    """Of its last checkpoint."""
    state: bytes | None = None
    cursors: dict[str, int] = {}
    outputs: tuple[bytes, ...] = ()
    """Publications that may not be in the log yet."""
    last: int = 0
    """The number of the last publication."""

    def keep(self, checkpoint: HostedCheckpoint) -> None:
        self.number = checkpoint.number
        if checkpoint.state is not None:
            self.state = checkpoint.state
        self.cursors = {**self.cursors, **checkpoint.cursors}
        first = self.last - len(self.outputs) + 1
        settled = max(0, min(checkpoint.settled, self.last) - first + 1)
        self.outputs = (*self.outputs[settled:], *checkpoint.outputs)
        self.last += len(checkpoint.outputs)

    @property
    def outputs_bytes(self) -> int:
        return sum(map(len, self.outputs))


class MovingHosted(Struct, array_like=True, frozen=True):
    """A hosted client whose session moves to another broker."""

    client: HostedClient
