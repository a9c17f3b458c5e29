"""The streams of a client: its unsettled publications, and the events from each pubend.

Within a session a pubend is one stream of growing ticks. Events that are redelivered after a
reconnect are recognised by their ticks, so the application gets no duplicates, and gets events in
order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from msgspec import Raw

from motet.client.session.state import Failure, Missed, Operation, Settled, StreamBatch
from motet.errors import ProtocolError
from motet.protocol.delivery.messages import Delivered
from motet.protocol.publication import Publication, TransactionPublication
from motet.protocol.session.messages import Processed, Publish, Published, Refusal, Welcome

BATCH_EVENTS = 256
BATCH_BYTES = 256 * 1024

ANSWER_LOST = Failure("Disconnected", "the answer was lost with the connection")
LOG_DESTROYED = Failure(
    "Disconnected",
    "the broker's log was destroyed before the answer, so it is unknown whether the event arrived",
)
FORGOTTEN = Failure("Disconnected", "the broker restarted before the answer")


@dataclass(slots=True)
class PublicationRun:
    """Consecutive publications of one kind. `given_up`: their fate is unknown, and they are not
    sent again; they are settled when their turn comes."""

    last: int
    sure: bool
    given_up: bool = False


class Window:
    """Ordinals count across sessions, numbers within one: settled ≤ sent ≤ made.

    Settled publications are discarded; sent ones are kept for retransmission.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.settled = 0
        self.sent = 0
        self._open: deque[Raw] = deque()
        self._runs: deque[PublicationRun] = deque()  # of unsettled publications
        self._given_up = False  # some of the runs are given up
        self._base = 0  # ordinal minus number
        self.answered = 0
        """The number of the last publication of the session that the broker has handled."""

    @property
    def made(self) -> int:
        return self.settled + len(self._open)

    @property
    def last_number(self) -> int:
        """The number of the last publication sent in this session."""
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
            self._runs.append(PublicationRun(last, sure))
        return range(first, last + 1)

    # ── sending ──────────────────────────────────────────────────────────────────────────

    def send_last(self, bodies: Sequence[Raw], sure: bool) -> Iterator[Publish]:
        """Frames for publications added just now, if everything before them is sent."""
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
        """The fate of publications up to this ordinal will never be known."""
        return [Settled(upto, (), why)] if self._settle(upto) else []

    def published(self, frame: Published) -> list[Settled]:
        return self._handled(self._sent(frame.upto), frame.refused)

    def resume(self, frame: Welcome) -> list[Settled]:
        """Settle what the broker has. The rest will be sent again, except for best-effort
        publications that the broker may have had and forgotten."""
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
        """A new session counts from 1; the fate of publications sent in the last one is unknown."""
        told = self.lose(self.sent, why)
        self._base = self.settled
        self.answered = 0
        return told

    def take_over(self, frame: Welcome) -> None:
        """A durable session has publications of another process; this one's numbers follow."""
        self._base = self.settled - frame.taken
        self.answered = frame.published

    def _sent(self, number: int) -> int:
        """The ordinal of a publication that the broker claims to have."""
        ordinal = self._base + number
        if ordinal > self.sent:
            raise ProtocolError(f"the broker answered publication {number}, which was never sent")
        self.answered = max(self.answered, number)
        return ordinal

    def _give_up(self) -> None:
        """Never send again best-effort publications that were sent."""
        runs: deque[PublicationRun] = deque()
        after = self.settled
        for run in self._runs:
            if run.sure or run.given_up or after >= self.sent:
                runs.append(run)
            else:
                runs.append(PublicationRun(min(run.last, self.sent), False, given_up=True))
                if run.last > self.sent:
                    runs.append(replace(run))
                self._given_up = True
            after = run.last
        self._runs = runs

    def _handled(self, upto: int, refused: Iterable[Refusal]) -> list[Settled]:
        """The broker has accepted all up to an ordinal, except for those in `refused`."""
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
        """Settle everything up to this ordinal; false if it was settled before."""
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
    """Batches small enough for smooth flow, and never above the limit of one frame."""
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


ROUTES_REMEMBERED = 4096


class Routes(dict[tuple[int, ...], tuple[int, ...]]):
    """Maps sequences of subscriptions to their handles; cached per combination."""

    def __init__(self, subscribed: dict[int, Operation]) -> None:
        self._subscribed = subscribed

    def __missing__(self, sequences: tuple[int, ...]) -> tuple[int, ...]:
        if len(self) >= ROUTES_REMEMBERED:
            self.clear()
        known = self._subscribed
        handles = tuple(known[s].handle for s in sequences if s in known)
        self[sequences] = handles
        return handles


class PubendStreams:
    def __init__(self, routes: Routes, cursors: Mapping[str, int] | None = None) -> None:
        self._routes = routes
        self._given = dict(cursors or {})
        self.received: dict[str, int] = dict(self._given)
        """By pubend: everything up to this tick has been delivered, or reported lost."""
        self._processed: dict[str, int] = {}

    def take(self, frame: Delivered) -> list[StreamBatch | Missed]:
        """The new events and losses in a frame, in the order of their ticks."""
        pubend, upto, ticks, batch, each = (
            frame.pubend,
            frame.upto,
            frame.ticks,
            frame.batch,
            frame.each,
        )
        if len(batch) != len(ticks) or (each and len(each) != len(ticks)):
            raise ProtocolError(f"a delivery of {pubend!r} whose lists differ in length")
        if (ticks and ticks[-1] > upto) or (frame.lost and frame.lost[-1][1] > upto):
            raise ProtocolError(f"a delivery of {pubend!r} with ticks after its end")
        before = self.received.get(pubend, 0)
        if upto <= before:
            return []
        self.received[pubend] = upto
        if ticks and ticks[0] <= before:
            known = bisect_right(ticks, before)
            ticks, batch, each = ticks[known:], batch[known:], each[known:]
        if frame.blocks:
            batch = _marked(ticks, batch, frame.blocks)
        routes = self._routes
        every = routes[frame.every] if frame.every else ()
        news = StreamBatch(pubend, upto, ticks, batch, every, [routes[s] for s in each])
        if frame.lost:
            return _with_losses(news, [(max(a, before + 1), b) for a, b in frame.lost])
        if not ticks and self._processed.get(pubend, 0) >= before:
            self._processed[pubend] = upto  # there is nothing to acknowledge
        return [news] if ticks else []

    def done(self, pubend: str, upto: int) -> Processed | None:
        """The application has acknowledged everything up to this tick; None if that is not new."""
        upto = min(upto, self.received.get(pubend, 0))
        if upto <= self._processed.get(pubend, 0):
            return None
        self._processed[pubend] = upto
        return Processed(pubend, upto)

    def done_again(self) -> list[Processed]:
        """Retransmitted to a broker that may have lost some of it with the connection."""
        return [Processed(pubend, upto) for pubend, upto in self._processed.items()]

    def begun(self) -> dict[str, int]:
        """Positions of the pubends from which something has arrived."""
        given = self._given
        return {p: upto for p, upto in self.received.items() if upto > given.get(p, 0)}

    def begin_again(self) -> None:
        """Every subscription starts from scratch in a new session, after everything before, unless
        it asks for past events."""
        self.received.clear()
        self._processed.clear()

    def consistent(self) -> bool:
        return all(upto <= self.received.get(p, 0) for p, upto in self._processed.items())


def _marked(
    ticks: list[int], batch: list[Publication], blocks: tuple[tuple[str, int, int], ...]
) -> list[Publication]:
    """Mark each event of a transaction with the transaction's name."""
    marked = list(batch)
    for tx, low, high in blocks:
        for at in range(bisect_left(ticks, low), bisect_right(ticks, high)):
            event = marked[at]
            marked[at] = TransactionPublication(event.publisher, event.sequence, event.body, tx)
    return marked


def _with_losses(news: StreamBatch, lost: list[tuple[int, int]]) -> list[StreamBatch | Missed]:
    """The same events, split, with the losses at their positions."""
    told: list[StreamBatch | Missed] = []
    begin = 0

    def piece(end: int, upto: int) -> None:
        nonlocal begin
        if end > begin:
            part = slice(begin, end)
            told.append(
                news._replace(
                    upto=upto, ticks=news.ticks[part], batch=news.batch[part], each=news.each[part]
                )
            )
            begin = end

    for low, high in lost:
        if low <= high:
            piece(bisect_left(news.ticks, low), low - 1)
            told.append(Missed(news.pubend, low, high))
    piece(len(news.ticks), news.upto)
    return told
