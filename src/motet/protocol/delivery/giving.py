"""Clients of one broker take their places in all streams, and are given what has come."""

from __future__ import annotations

from collections.abc import Callable

from motet.model import OpId
from motet.protocol.delivery.acknowledging import Acknowledging
from motet.protocol.delivery.asking import Asking
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.merge import Blocked
from motet.protocol.delivery.position import Position
from motet.protocol.delivery.reader import Reach, Reader
from motet.protocol.delivery.state import Effects, Stream
from motet.protocol.delivery.together import Holding


def _nowhere(op: OpId, pubend: str) -> None:
    del op, pubend


class Giving:
    def __init__(
        self,
        interest: Interest,
        asking: Asking,
        acks: Acknowledging,
        stream: Callable[[str], Stream],
    ) -> None:
        self._interest = interest
        self._asking = asking
        self._acks = acks
        self._stream = stream
        self.reach: Reach = _nowhere
        self._readers: dict[str, Reader] = {}
        self.holding = Holding(asking, stream)

    def _place_all(self, reader: Reader, now: float, out: Effects) -> None:
        """Everybody who is not held takes a place."""
        waiting = [(self._stream(p), each) for p, each in reader.positions.items()]
        waiting = [(stream, each) for stream, each in waiting if not each.present]
        ready = [each for each in waiting if not self._held(each[0], reader, each[1])]
        for stream, position in waiting:
            stream.held[position.client] = None
        for stream, position in ready:
            del stream.held[position.client]
            self._place(stream, reader, position)
            stream.subend.tell_gone(position, out.deliver)
        for stream, _ in waiting:
            self._asking.reconsider(stream, now, out)
        for stream, _ in ready:
            self.catch_up(stream, now, out)
            # What is missing now is no matter of frames that a link has swapped.
            self._asking.reconsider(stream, now, out, hurry=stream.frontier)
            self._acks.arm(stream, now, out)

    def _held(self, stream: Stream, reader: Reader, position: Position) -> bool:
        """A client that has never been given anything of this pubend is held as long as another
        of its subscriptions may turn out to have started earlier."""
        if not position.fresh or reader.cursors.get(stream.pubend, 0) > position.given:
            return False
        if 0 < position.level == position.given and reader.merge is None:
            return False  # it goes on where it was
        if reader.hold:
            return True
        if reader.merge is not None:
            return stream.pubend in reader.awaited or not position.told
        return stream.cleared < position.unclear_upto and not stream.hosted

    def _place(self, stream: Stream, reader: Reader, position: Position) -> None:
        """Begin to deliver to a client, from where it stands."""
        pubend = stream.pubend
        cursor = reader.cursors.get(pubend, 0)
        floor = stream.floor if position.given >= position.deep_upto else 0
        position.given = max(position.given, cursor, floor)
        if position.gone is not None:
            position.given = max(position.given, min(position.starts.values()))
            position.gone = None if cursor >= position.gone[1] else position.gone
        if reader.merge is not None:
            reader.merge.join(pubend, position.given)
            if stream.alone:
                reader.merge.finish(pubend)
            position.merge = reader.merge
        position.together = reader.together
        if reader.durable and reader.resumes and cursor > position.acked:
            # Its process has these; but should it end before it is done, the next one needs them.
            position.outstanding.append((position.acked + 1, cursor, 0))
        else:
            position.acked = max(position.acked, position.given)
        stream.subend.place(position)

    def catch_up(self, stream: Stream, now: float, out: Effects) -> None:
        """Something has changed for some: give everybody what can be given, ask for the rest."""
        subend = stream.subend
        subend.advance(out.deliver)
        for client in list(stream.held):
            self._place_all(self._readers[client], now, out)
        if subend.behind:
            for position in list(subend.behind.values()):
                subend.pump(position, out.deliver)
            subend.advance(out.deliver)
        if subend.merged:
            self.merge(stream, now, out)
        if self.holding:
            self.holding.release(now, out)
        self._asking.reconsider(stream, now, out)

    def merge(self, stream: Stream, now: float, out: Effects) -> None:
        """Clients in total order must hear how far a stream is, even if it was silent."""
        for client, position in list(stream.subend.merged.items()):
            if position.merge is not None:
                position.merge.reached(stream.pubend, position.standing(stream.subend.horizon))
                self._release(client, self._readers[client], now, out)

    def _release(self, client: str, reader: Reader, now: float, out: Effects) -> None:
        merge = reader.merge
        if merge is None:
            return
        out.deliver.extend((client, each) for each in merge.release())
        blocker = merge.blocker()
        if blocker is None:
            reader.blocked = None
        elif reader.blocked is None or reader.blocked.pubend != blocker:
            reader.blocked = Blocked(blocker, now)
        for pubend in merge.late():
            self._asking.reconsider(self._stream(pubend), now, out)

    def blocked(self) -> dict[str, tuple[int, float]]:
        found: dict[str, tuple[int, float]] = {}
        for reader in self._readers.values():
            if reader.blocked is not None:
                pubend, since_s = reader.blocked
                count, first_s = found.get(pubend, (0, since_s))
                found[pubend] = (count + 1, min(first_s, since_s))
        return found
