"""The machine of a client that runs in a broker's container.

It lives for one connection. It acknowledges events with checkpoints only, one after the other, and
publishes the outputs of a checkpoint when that is durable, under the numbers that it had then.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw
from msgspec.structs import replace

from motet import errors
from motet.client.session.machine import ClientMachine
from motet.client.session.state import Kept
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.hosted.messages import (
    MAX_OUTPUTS,
    MAX_OUTPUTS_BYTES,
    MAX_STATE_BYTES,
    CheckpointKept,
    HostedCheckpoint,
    HostedHello,
    HostedState,
)
from motet.protocol.session.messages import ClientHello, Welcome


class HostedMachine(ClientMachine):
    """A `ClientMachine` that is opened once. `checkpoint` replaces `processed` and `publish`."""

    known: HostedState
    """What it continues with."""

    def __init__(
        self, client: str, *, instance: str, keep_s: float, total_order: bool = False
    ) -> None:
        super().__init__(client, instance=instance, keep_s=keep_s, total_order=total_order)
        self.known = HostedState()
        self._number = 0
        self._under_way: tuple[bytes, ...] | None = None
        """The outputs of a checkpoint that is not durable yet."""
        self._staged: list[bytes] = []
        self._staged_bytes = 0
        self._sizes: dict[int, int] = {}
        """By ordinal, the bytes of published outputs that are not settled."""

    # ── the application ──────────────────────────────────────────────────────────────────

    def stage(self, body: bytes) -> None:
        """Publish an event with the next checkpoint."""
        if self._staged_bytes + len(body) > MAX_OUTPUTS_BYTES or len(self._staged) >= MAX_OUTPUTS:
            raise errors.MisuseError(
                f"{self.client!r} publishes more than {MAX_OUTPUTS_BYTES} bytes, or more than "
                f"{MAX_OUTPUTS} events, before it acknowledges: acknowledge in between"
            )
        self._staged.append(body)
        self._staged_bytes += len(body)

    @property
    def staged(self) -> int:
        """Events that wait for the next checkpoint."""
        return len(self._staged)

    @property
    def is_checkpointing(self) -> bool:
        return self._under_way is not None

    @property
    def has_outlet(self) -> bool:
        """The log keeps pace with the outputs, so further events may be processed."""
        window = self.window
        return (
            window.made - window.settled < MAX_OUTPUTS
            and sum(self._sizes.values()) + self._staged_bytes < MAX_OUTPUTS_BYTES
        )

    def checkpoint(self, state: bytes | None, cursors: Mapping[str, int]) -> int:
        """Make durable what was processed, the state, unless it is unchanged, and the outputs;
        returns the number. One checkpoint at a time."""
        if self.state != "open" or self._under_way is not None:
            raise errors.InvariantError("a checkpoint needs an open session, and no other one")
        if state is not None and len(state) > MAX_STATE_BYTES:
            raise errors.MisuseError(
                f"the state of {self.client!r} has {len(state)} bytes, and at most "
                f"{MAX_STATE_BYTES} can be kept"
            )
        self._number += 1
        outputs, self._staged, self._staged_bytes = tuple(self._staged), [], 0
        self._under_way = outputs
        frame = HostedCheckpoint(self._number, dict(cursors), state, self.window.answered, outputs)
        self._session.send.append(frame)
        return self._number

    # ── the connection ───────────────────────────────────────────────────────────────────

    def _hello(self, usual: ClientHello) -> Frame:
        if self.epoch is not None:
            raise errors.InvariantError("a hosted client connects once")
        return HostedHello(PROTOCOL_VERSION, usual)

    def received(self, frame: Frame) -> None:
        match frame:
            case HostedState() if self.state == "greeting":
                self.known = frame
                self._number = frame.number
            case CheckpointKept() if self.state == "open":
                self._kept(frame)
            case HostedState() | CheckpointKept():
                if self.state != "ended":
                    raise errors.ProtocolError(f"{type(frame).__name__} while {self.state}")
            case Welcome():
                self._welcomed(frame)
            case _:
                super().received(frame)
                self._forget_sizes()

    def _welcomed(self, frame: Welcome) -> None:
        """Continue behind the last output of any checkpoint. Publish again those that may not be in
        the log; earlier ones are settled, even if the log does not have them, as when they were
        refused."""
        known, outputs = self.known, self.known.outputs
        first = known.last - len(outputs) + 1
        taken = max(frame.taken, first - 1)
        if taken > known.last and self.known.number:
            raise errors.ProtocolError(
                f"the broker has publication {taken}, but the last one was {known.last}"
            )
        super().received(replace(frame, taken=taken))
        self._taken = frame.taken
        self._publish(outputs[taken - first + 1 :])

    def _kept(self, frame: CheckpointKept) -> None:
        outputs, self._under_way = self._under_way, None
        if outputs is None or frame.number != self._number:
            raise errors.ProtocolError(f"checkpoint {frame.number} was not made")
        self._session.happened.append(Kept(frame.number))
        self._publish(outputs)

    def _publish(self, outputs: tuple[bytes, ...]) -> None:
        if outputs:
            ordinals = self.publish([Raw(body) for body in outputs])
            self._sizes.update(zip(ordinals, map(len, outputs), strict=True))

    def _forget_sizes(self) -> None:
        while self._sizes and (first := next(iter(self._sizes))) <= self.window.settled:
            del self._sizes[first]
