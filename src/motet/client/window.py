"""Publications whose fate is open, in the order they were made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Raw

from motet.protocol.session.messages import Publish, Refusal

BATCH_EVENTS = 256
BATCH_BYTES = 256 * 1024


class Window:
    """Ordinals count across sessions, numbers within one: settled ≤ sent ≤ made.

    What is settled is forgotten; what is sent is kept, because it may have to be sent again.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.settled = 0
        self.sent = 0
        self._open: deque[Raw] = deque()
        self._base = 0  # ordinal minus number

    @property
    def made(self) -> int:
        return self.settled + len(self._open)

    @property
    def room(self) -> int:
        return self.size - len(self._open)

    def ordinal(self, number: int) -> int:
        return self._base + number

    def news(self, refused: Iterable[Refusal], upto: int) -> tuple[Refusal, ...]:
        """Refusals up to an ordinal that were not settled before, with ordinals for numbers."""
        return tuple(
            Refusal(self._base + refusal.sequence, refusal.error, refusal.text)
            for refusal in refused
            if self.settled < self._base + refusal.sequence <= upto
        )

    def add(self, bodies: Sequence[Raw]) -> range:
        first = self.made + 1
        self._open.extend(bodies)
        return range(first, self.made + 1)

    def send_last(self, bodies: Sequence[Raw]) -> Iterator[Publish]:
        """Frames for what was added just now, when everything before it is sent."""
        return self._frames(bodies)

    def send(self, upto: int) -> Iterator[Publish]:
        """Frames for everything up to this ordinal that is not sent yet."""
        if upto <= self.sent:
            return iter(())
        return self._frames(islice(self._open, self.sent - self.settled, upto - self.settled))

    def _frames(self, bodies: Iterable[Raw]) -> Iterator[Publish]:
        for batch in _batches(bodies):
            yield Publish(self.sent + 1 - self._base, batch)
            self.sent += len(batch)

    def settle(self, upto: int) -> bool:
        """Everything up to this ordinal has met its fate; false if that is no news."""
        if upto <= self.settled:
            return False
        for _ in range(upto - self.settled):
            self._open.popleft()
        self.settled = upto
        self.sent = max(self.sent, upto)
        return True

    def send_again(self) -> None:
        """What was sent did not arrive."""
        self.sent = self.settled

    def begin_again(self) -> None:
        """A new session counts from 1."""
        self._base = self.settled

    def in_order(self) -> bool:
        return self._base <= self.settled <= self.sent <= self.made and self.room >= 0


def _batches(bodies: Iterable[Raw]) -> Iterator[list[Raw]]:
    """Frames small enough to flow, and never above the limit of one frame."""
    batch: list[Raw] = []
    size = 0
    for body in bodies:
        length = len(body)
        if batch and (len(batch) >= BATCH_EVENTS or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += length
    if batch:
        yield batch
