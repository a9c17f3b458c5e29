"""How far a client has come in each pubend: what it received, and what it is done with.

Within a session a pubend is one stream of growing ticks. What is redelivered after a reconnect
is told by its tick, so nothing reaches the application twice, and nothing out of order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from motet.client.happenings import Brought, Missed
from motet.client.operation import Routes
from motet.errors import ProtocolError
from motet.protocol.delivery.messages import Delivered
from motet.protocol.publication import InTransaction, Publication
from motet.protocol.session.messages import Processed


class Streams:
    def __init__(self, routes: Routes, cursors: Mapping[str, int] | None = None) -> None:
        self._routes = routes
        self._given = dict(cursors or {})
        self.received: dict[str, int] = dict(self._given)
        """By pubend: everything up to this tick was delivered to us, or reported lost."""
        self._processed: dict[str, int] = {}

    def take(self, frame: Delivered) -> list[Brought | Missed]:
        """What of it is new, in the order of the ticks."""
        pubend, upto, ticks, batch, each = (
            frame.pubend,
            frame.upto,
            frame.ticks,
            frame.batch,
            frame.each,
        )
        if len(batch) != len(ticks) or (each and len(each) != len(ticks)):
            raise ProtocolError(f"a delivery of {pubend!r} whose parts do not fit together")
        if (ticks and ticks[-1] > upto) or (frame.lost and frame.lost[-1][1] > upto):
            raise ProtocolError(f"a delivery of {pubend!r} that goes beyond its own end")
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
        news = Brought(pubend, upto, ticks, batch, every, [routes[s] for s in each])
        if frame.lost:
            return _with_losses(news, [(max(a, before + 1), b) for a, b in frame.lost])
        if not ticks and self._processed.get(pubend, 0) >= before:
            self._processed[pubend] = upto  # there is nothing to be done with
        return [news] if ticks else []

    def done(self, pubend: str, upto: int) -> Processed | None:
        """The application is done with everything up to this tick; None if that is no news."""
        upto = min(upto, self.received.get(pubend, 0))
        if upto <= self._processed.get(pubend, 0):
            return None
        self._processed[pubend] = upto
        return Processed(pubend, upto)

    def done_again(self) -> list[Processed]:
        """For a broker that may have lost some of it with the connection."""
        return [Processed(pubend, upto) for pubend, upto in self._processed.items()]

    def begun(self) -> dict[str, int]:
        """What has come, of pubends from which something has come at all."""
        given = self._given
        return {p: upto for p, upto in self.received.items() if upto > given.get(p, 0)}

    def begin_again(self) -> None:
        """In a new session every subscription starts anew, beyond all that was before, unless it
        reaches back to it."""
        self.received.clear()
        self._processed.clear()

    def consistent(self) -> bool:
        return all(upto <= self.received.get(p, 0) for p, upto in self._processed.items())


def _marked(
    ticks: list[int], batch: list[Publication], blocks: tuple[tuple[str, int, int], ...]
) -> list[Publication]:
    """With the name of its transaction on each event that belongs to one."""
    marked = list(batch)
    for tx, low, high in blocks:
        for at in range(bisect_left(ticks, low), bisect_right(ticks, high)):
            event = marked[at]
            marked[at] = InTransaction(event.publisher, event.sequence, event.body, tx)
    return marked


def _with_losses(news: Brought, lost: list[tuple[int, int]]) -> list[Brought | Missed]:
    """The same events, in pieces, with the losses where they belong."""
    told: list[Brought | Missed] = []
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
