"""Publications whose fate is open, in the order they were made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from msgspec import Raw

from motet.client.happenings import Failure, Settled
from motet.errors import ProtocolError
from motet.protocol.session.messages import Publish, Published, Refusal, Welcome

BATCH_EVENTS = 256
BATCH_BYTES = 256 * 1024

ANSWER_LOST = Failure("Disconnected", "the answer was lost with the connection")
LOG_DESTROYED = Failure(
    "Disconnected",
    "the broker's log was destroyed before the answer: it has perhaps arrived, perhaps not",
)
FORGOTTEN = Failure("Disconnected", "the broker restarted before the answer")


@dataclass(slots=True)
class Run:
    """Consecutive publications of one kind. `given_up`: nobody knows what became of them, and
    they are not sent again; they are settled when their turn comes."""

    last: int
    sure: bool
    given_up: bool = False


class Window:
    """Ordinals count across sessions, numbers within one: settled ≤ sent ≤ made.

    What is settled is forgotten; what is sent is kept, because it may have to be sent again.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.settled = 0
        self.sent = 0
        self._open: deque[Raw] = deque()
        self._runs: deque[Run] = deque()  # of what is open
        self._given_up = False  # some of the runs are
        self._base = 0  # ordinal minus number
        self.answered = 0
        """The number of the last publication of the session that the broker has handled."""

    @property
    def made(self) -> int:
        return self.settled + len(self._open)

    @property
    def last_number(self) -> int:
        """Of what was sent in this session."""
        return self.sent - self._base

    @property
    def room(self) -> int:
        return self.size - len(self._open)

    def add(self, bodies: Sequence[Raw], sure: bool) -> range:
        first = self.made + 1
        self._open.extend(bodies)
        last = self.made
        if self._runs and self._runs[-1].sure is sure and not self._runs[-1].given_up:
            self._runs[-1].last = last
        elif bodies:
            self._runs.append(Run(last, sure))
        return range(first, last + 1)

    # ── sending ──────────────────────────────────────────────────────────────────────────

    def send_last(self, bodies: Sequence[Raw], sure: bool) -> Iterator[Publish]:
        """Frames for what was added just now, when everything before it is sent."""
        return self._frames(bodies, sure)

    def send(self, upto: int) -> Iterator[Publish]:
        """Frames for everything up to this ordinal that is not sent yet."""
        for run in self._runs:
            end = min(run.last, upto)
            if end <= self.sent:
                continue
            if run.given_up:
                self.sent = end
            else:
                part = islice(self._open, self.sent - self.settled, end - self.settled)
                yield from self._frames(part, run.sure)

    def _frames(self, bodies: Iterable[Raw], sure: bool) -> Iterator[Publish]:
        for batch in _batches(bodies):
            yield Publish(self.sent + 1 - self._base, batch, sure)
            self.sent += len(batch)

    # ── settling ─────────────────────────────────────────────────────────────────────────

    def lose(self, upto: int, why: Failure) -> list[Settled]:
        """Nobody will ever say what became of those up to this ordinal."""
        return [Settled(upto, (), why)] if self._settle(upto) else []

    def published(self, frame: Published) -> list[Settled]:
        return self._handled(self._sent(frame.upto), frame.refused)

    def resume(self, frame: Welcome) -> list[Settled]:
        """What the broker has is settled. What it does not have is to be sent again, but for
        best-effort ones that it may have had and forgotten."""
        handled = self._sent(frame.published)
        if frame.forgot:
            self._give_up()
        told = self.lose(min(handled, self._base + frame.destroyed), LOG_DESTROYED)
        # Some of these may have been refused; the broker cannot say which.
        told += self.lose(min(handled, self._base + frame.forgotten), ANSWER_LOST)
        told += self._handled(handled, frame.refused)
        self.sent = self.settled
        return told

    def begin_again(self, why: Failure) -> list[Settled]:
        """A new session counts from 1, and knows nothing of what was sent in the last one."""
        told = self.lose(self.sent, why)
        self._base = self.settled
        self.answered = 0
        return told

    def take_over(self, frame: Welcome) -> None:
        """A durable session has publications of another process: ours follow them."""
        self._base = self.settled - frame.taken
        self.answered = frame.published

    def _sent(self, number: int) -> int:
        """The ordinal of what the broker claims to have."""
        ordinal = self._base + number
        if ordinal > self.sent:
            raise ProtocolError(f"publication {number} was never sent")
        self.answered = max(self.answered, number)
        return ordinal

    def _give_up(self) -> None:
        """Best-effort ones that were sent are never sent again."""
        runs: deque[Run] = deque()
        after = self.settled
        for run in self._runs:
            if run.sure or run.given_up or after >= self.sent:
                runs.append(run)
            else:
                runs.append(Run(min(run.last, self.sent), False, given_up=True))
                if run.last > self.sent:
                    runs.append(replace(run))
                self._given_up = True
            after = run.last
        self._runs = runs

    def _handled(self, upto: int, refused: Iterable[Refusal]) -> list[Settled]:
        """The broker has them all, but for those in `refused`."""
        if not self._given_up:
            news = self._news(refused, upto)
            return [Settled(upto, news)] if self._settle(upto) else []
        told: list[Settled] = []
        while self._runs and (self._runs[0].given_up or self.settled < upto):
            run = self._runs[0]
            if run.given_up:
                told += self.lose(run.last, FORGOTTEN)
            else:
                end = min(run.last, upto)
                told.append(Settled(end, self._news(refused, end)))
                self._settle(end)
        return told

    def _news(self, refused: Iterable[Refusal], upto: int) -> tuple[Refusal, ...]:
        """Refusals up to an ordinal that were not settled before, with ordinals for numbers."""
        return tuple(
            Refusal(self._base + refusal.sequence, refusal.error, refusal.text)
            for refusal in refused
            if self.settled < self._base + refusal.sequence <= upto
        )

    def _settle(self, upto: int) -> bool:
        """Everything up to this ordinal has met its fate; false if that is no news."""
        if upto <= self.settled:
            return False
        for _ in range(upto - self.settled):
            self._open.popleft()
        while self._runs and self._runs[0].last <= upto:
            self._runs.popleft()
            self._given_up = self._given_up and any(run.given_up for run in self._runs)
        self.settled = upto
        self.sent = max(self.sent, upto)
        return True

    # ── for tests and the simulator ──────────────────────────────────────────────────────

    def in_order(self) -> bool:
        ends = [self.settled, *(run.last for run in self._runs)]
        return (
            self._base <= self.settled <= self.sent <= self.made
            and self.room >= 0
            and ends[-1] == self.made
            and all(one < other for one, other in pairwise(ends))
            and self._given_up == any(run.given_up for run in self._runs)
        )


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
