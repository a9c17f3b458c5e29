"""The clients of one broker in all streams: who is here, where each stands, what starts, ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from motet.errors import MisuseError
from motet.model import OpId
from motet.protocol.delivery.acknowledging import Acknowledging
from motet.protocol.delivery.asking import Asking
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.merge import Merge
from motet.protocol.delivery.spans import Record
from motet.protocol.delivery.state import Effects, Started, Stream
from motet.protocol.delivery.subend import Position


class Reader:
    """One client, in all pubends."""

    __slots__ = ("cursors", "merge", "positions", "present")

    def __init__(self) -> None:
        self.present = False
        self.cursors: Mapping[str, int] = {}
        """What the client said it had processed when it came."""
        self.positions: dict[str, Position] = {}
        self.merge: Merge | None = None
        """For a client that wants total order."""


class Clients:
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
        self._readers: dict[str, Reader] = {}

    # ── subscriptions ────────────────────────────────────────────────────────────────────

    def begin(
        self,
        stream: Stream,
        client: str,
        op: OpId,
        tick: int,
        out: Effects,
        since: int | None = None,
    ) -> None:
        """A start tick is known, from the stream or from control; the first one counts."""
        reader = self._readers.setdefault(client, Reader())
        position = stream.subend.positions.get(client)
        if position is not None and op.sequence in position.starts:
            return
        begin = tick if since is None else min(since, tick)
        if position is None:
            position = Position(client, begin)
            stream.subend.positions[client] = reader.positions[stream.pubend] = position
            if begin < tick:
                position.deep_upto = position.deep_asof = tick
        elif begin < tick:
            raise MisuseError("only a client's first subscription may reach into the past")
        position.begin(op.sequence, begin)
        out.started.append(Started(client, op, stream.pubend, tick))
        if reader.present and not position.present:
            stream.held[client] = None

    def note(self, stream: Stream, records: tuple[Record, ...], out: Effects) -> None:
        """Records that concern clients of ours. What is filtered by ticks may be known early."""
        for record in records:
            mask = self._interest.record_mask(record)
            if not mask:
                continue
            way = self._interest.way(mask)
            client = record.op.client
            if client in way.several or any(name == client for name, _ in way.single):
                self.begin(stream, client, record.op, record.tick, out)

    def effective(self, client: str, now: float, out: Effects) -> None:
        reader = self._readers.get(client)
        if reader is None or not reader.present:
            return
        self._place_all(reader, now, out)

    def end(self, client: str, op: OpId, now: float, out: Effects) -> None:
        reader = self._readers.get(client)
        if reader is None:
            return
        for pubend, position in list(reader.positions.items()):
            if position.starts.pop(op.sequence, None) is not None and not position.starts:
                stream = self._stream(pubend)
                stream.held.pop(client, None)
                stream.subend.remove(position)
                self.forget(client, pubend)
                self._asking.reconsider(stream, now, out)
                self._acks.arm(stream, now, out)
        self._release(client, reader, now, out)
        if not reader.positions and not reader.present:
            del self._readers[client]

    def forget(self, client: str, pubend: str) -> None:
        reader = self._readers[client]
        del reader.positions[pubend]
        if reader.merge is not None:
            reader.merge.leave(pubend)

    # ── coming and going ─────────────────────────────────────────────────────────────────

    def attach(
        self, client: str, cursors: Mapping[str, int], now: float, out: Effects, total_order: bool
    ) -> None:
        self.detach(client, now, out)
        reader = self._readers.setdefault(client, Reader())
        reader.present = True
        reader.cursors = dict(cursors)
        reader.merge = Merge(max(cursors.values(), default=0)) if total_order else None
        self._place_all(reader, now, out)

    def _place_all(self, reader: Reader, now: float, out: Effects) -> None:
        """Everybody who is not held takes a place. A merge needs all of its pubends before it
        releases anything of one, so in total order one that is held holds the others."""
        waiting = [(self._stream(p), each) for p, each in reader.positions.items()]
        waiting = [(stream, each) for stream, each in waiting if not each.present]
        ready = [each for each in waiting if not self._held(each[0], reader, each[1])]
        if reader.merge is not None and len(ready) < len(waiting):
            ready = []
        for stream, position in waiting:
            stream.held[position.client] = None
        for stream, position in ready:
            del stream.held[position.client]
            self._place(stream, reader, position)
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
        if reader.merge is not None and self._interest.waiting(position.client):
            return True
        return stream.cleared < position.given and not stream.hosted

    def _place(self, stream: Stream, reader: Reader, position: Position) -> None:
        """Begin to deliver to a client, from where it stands."""
        pubend = stream.pubend
        cursor = reader.cursors.get(pubend, 0)
        begins = position.fresh and cursor <= position.given
        floor = stream.floor if position.given >= position.deep_upto else 0
        position.given = max(position.given, cursor, floor)
        if reader.merge is not None:
            if begins:
                position.given = reader.merge.join(pubend, position.given)
            else:
                reader.merge.rejoin(pubend, position.given)
            position.merge = reader.merge
        position.acked = max(position.acked, position.given)
        stream.subend.place(position)

    def detach(self, client: str, now: float, out: Effects) -> None:
        reader = self._readers.get(client)
        if reader is None or not reader.present:
            return
        reader.present = False
        reader.cursors = {}
        reader.merge = None
        for pubend, position in reader.positions.items():
            stream = self._stream(pubend)
            stream.held.pop(client, None)
            stream.subend.absent(position)
            self._asking.reconsider(stream, now, out)
        if not reader.positions:
            del self._readers[client]

    def acked(self, client: str, stream: Stream, tick: int, now: float, out: Effects) -> None:
        position = stream.subend.positions.get(client)
        if position is None or not position.present:
            return
        position.acknowledge(tick)
        if client in stream.subend.behind:
            self.catch_up(stream, now, out)
        self._acks.arm(stream, now, out)

    # ── moving ───────────────────────────────────────────────────────────────────────────

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
        self._asking.reconsider(stream, now, out)

    def merge(self, stream: Stream, now: float, out: Effects) -> None:
        """Clients in total order must hear how far a stream is, even if it was silent."""
        for client, position in list(stream.subend.merged.items()):
            if position.merge is not None:
                position.merge.reached(stream.pubend, position.standing(stream.subend.horizon))
                self._release(client, self._readers[client], now, out)

    def _release(self, client: str, reader: Reader, now: float, out: Effects) -> None:
        if reader.merge is None:
            return
        out.deliver.extend((client, each) for each in reader.merge.release())
        for pubend in reader.merge.late():
            self._asking.reconsider(self._stream(pubend), now, out)

    def joined(self, client: str) -> bool:
        """Has every pubend passed the tick above which this client merges it?"""
        reader = self._readers.get(client)
        return reader is None or reader.merge is None or reader.merge.joined()

    def validate(self) -> None:
        for client, reader in self._readers.items():
            for pubend, position in reader.positions.items():
                assert self._stream(pubend).subend.positions[client] is position
                assert position.present <= reader.present
