"""The clients of one broker in all streams: who is here, where each stands, what starts, ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from motet.model import OpId
from motet.model.ticks import LAST_TICK
from motet.protocol.delivery.acknowledging import Acknowledging
from motet.protocol.delivery.asking import Asking
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.merge import Blocked, Merge
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.spans import Record
from motet.protocol.delivery.state import Effects, Started, Stream
from motet.protocol.delivery.subend import Position


class Reader:
    """One client, in all pubends."""

    __slots__ = (
        "awaited",
        "blocked",
        "cursors",
        "durable",
        "hold",
        "kept",
        "merge",
        "passed",
        "positions",
        "present",
        "resumes",
    )

    def __init__(self) -> None:
        self.present = False
        self.resumes = False
        """The same process as before: it has events that it is perhaps not done with."""
        self.durable = False
        self.hold = False
        """Nothing of a pubend that it has not begun to read is given before it is ready."""
        self.kept: Mapping[str, int] = {}
        """By pubend, how far it had come when that was last made durable."""
        self.cursors: Mapping[str, int] = {}
        """What the client said it had when it came; and had processed, unless it resumes."""
        self.passed: dict[str, int] = {}
        """By pubend where it has nothing any more: how far it had come since it is here."""
        self.positions: dict[str, Position] = {}
        self.merge: Merge | None = None
        """For a client that wants total order."""
        self.awaited: dict[str, None] = {}
        """Pubends at which a subscription of it will start, or start again."""
        self.blocked: Blocked | None = None

    def expected(self) -> list[str]:
        """Pubends that its merge will have, and has not."""
        placed = {p: each.present for p, each in self.positions.items()}
        told = [p for p, each in self.positions.items() if each.told and not each.present]
        return [*(p for p in self.awaited if not placed.get(p)), *told]


Reach = Callable[[OpId, str], int | None]
"""Above which tick of a pubend a subscription wants what is older than itself, if at all."""


class Durables(Protocol):
    """The doors for what outlives a connection, or reaches back before one."""

    reach: Reach

    def recall(self, client: str, cursors: Mapping[str, int]) -> None:
        """After a restart, before `start`: how far a durable client had come."""

    def done(self, client: str, subscription: int, pubend: str, tick: int) -> None:
        """One subscription of a client is further than the client is."""

    def ready(self, client: str, now: float, out: Effects) -> None:
        """A client that held has made its subscriptions, and reads."""

    def begun(self, client: str) -> dict[str, int]:
        """By pubend that a client has begun to read: where it stands, or stood before its last
        subscription there was over. If it is not here, it is done with everything up to there."""
        ...


class Merging(Protocol):
    """The doors for clients in total order."""

    def awaits(self, client: str, pubends: Iterable[str], now: float, out: Effects) -> None:
        """These are all pubends that a client will start to merge: it is given nothing more until
        `start` tells where. To be said before anybody is told that they may publish."""

    def blocked(self) -> dict[str, tuple[int, float]]:
        """By pubend that clients wait for: how many of them, and the first one since when."""
        ...


def _nowhere(op: OpId, pubend: str) -> None:
    del op, pubend


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
        self.reach: Reach = _nowhere
        self._readers: dict[str, Reader] = {}

    # ── subscriptions ────────────────────────────────────────────────────────────────────

    def begin(
        self,
        stream: Stream,
        client: str,
        op: OpId,
        tick: int,
        out: Effects,
    ) -> None:
        """A start tick is known, from the stream or from control; the first one counts."""
        reader = self._readers.setdefault(client, Reader())
        position = stream.subend.positions.get(client)
        if position is not None and op.sequence in position.starts:
            return
        since = None
        if reader.merge is None or not reader.merge.released[0]:
            since = self.reach(op, stream.pubend)
        begin = tick if since is None else min(since, tick)
        if position is None:
            position = Position(client, begin, durable=reader.durable)
            stream.subend.positions[client] = reader.positions[stream.pubend] = position
            stream.lasting = stream.lasting or reader.durable
        elif not position.fresh:
            begin = tick  # what lies behind it has passed by
        if begin < tick:
            position.reach(tick)
        level = reader.kept.get(stream.pubend, 0)
        position.level = level if position.deep_upto else max(level, stream.floor)
        position.origins[op.sequence] = tick
        position.begin(op.sequence, begin)
        out.started.append(Started(client, op, stream.pubend, tick))
        if reader.present and not position.present:
            stream.held[client] = None

    def recall(self, client: str, cursors: Mapping[str, int]) -> None:
        reader = self._readers.setdefault(client, Reader())
        reader.durable = True
        reader.kept = dict(cursors)

    def done(self, client: str, subscription: int, pubend: str, tick: int) -> None:
        reader = self._readers.get(client)
        position = reader.positions.get(pubend) if reader is not None else None
        if position is not None and subscription in position.starts:
            position.starts[subscription] = max(tick, position.starts[subscription])
            position.barrier = max(position.barrier, tick)

    def lift(self, stream: Stream, op: OpId, tick: int, now: float, out: Effects) -> None:
        """A start moves up. Who stands below all of its starts goes on from the lowest one."""
        subend = stream.subend
        position = subend.positions.get(op.client)
        if position is None or position.origins.get(op.sequence, tick) >= tick:
            return
        position.origins[op.sequence] = tick
        position.starts[op.sequence] = max(tick, position.starts[op.sequence])
        position.barrier = max(position.barrier, tick)
        least = min(position.starts.values())
        if position.standing(subend.horizon) >= least or position.merge is not None:
            return
        if position.given < position.deep_upto:
            # The past that it was reading cannot be read any more: its routes are gone.
            position.gone = (position.given + 1, min(position.deep_upto, least))
            position.deep_upto = 0
        was_present = position.present
        if was_present:
            subend.absent(position)
        position.given = position.acked = least
        if was_present:
            subend.place(position)
            subend.tell_gone(position, out.deliver)
        self.catch_up(stream, now, out)
        self._acks.arm(stream, now, out)

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
            position.origins.pop(op.sequence, None)
            if position.starts.pop(op.sequence, None) is not None and not position.starts:
                self._forget(self._stream(pubend), reader, position, now, out)
                if reader.merge is not None:
                    reader.merge.leave(pubend)
                    # Another subscription may start there: `awaits` will tell.
                    reader.merge.expect_only([*reader.expected(), pubend])
        if not reader.positions and not reader.present:
            del self._readers[client]

    def lapse(self, stream: Stream, op: OpId, now: float, out: Effects) -> None:
        """Nothing of a pubend is owed to a subscription before it starts there again. Who has no
        other there stands nowhere: what the pubend forgets meanwhile is no loss."""
        client = op.client
        position = stream.subend.positions.get(client)
        if position is None or position.gone is not None or position.outstanding:
            return
        if len(position.starts) > 1:
            position.starts.pop(op.sequence, None)
            position.origins.pop(op.sequence, None)
        if op.sequence not in position.starts:
            return
        reader = self._readers[client]
        self._forget(stream, reader, position, now, out)
        if reader.merge is not None:
            reader.merge.leave(stream.pubend)
            reader.merge.expect_only(reader.expected())
            self._release(client, reader, now, out)
        if not reader.positions and not reader.present:
            del self._readers[client]

    def _forget(
        self, stream: Stream, reader: Reader, position: Position, now: float, out: Effects
    ) -> None:
        stream.held.pop(position.client, None)
        if reader.present and not position.fresh:
            reader.passed[stream.pubend] = position.standing(stream.subend.horizon)
        stream.subend.remove(position)
        del reader.positions[stream.pubend]
        self._asking.reconsider(stream, now, out)
        self._acks.arm(stream, now, out)

    def destroyed(self, stream: Stream, client: str, now: float, out: Effects) -> None:
        """Nothing more comes of a pubend; what has come already keeps its place."""
        reader, pubend = self._readers[client], stream.pubend
        position = reader.positions.pop(pubend)
        since = position.standing(stream.subend.horizon) + 1
        if reader.merge is None:
            if position.present:
                lost = ((since, LAST_TICK),)
                out.deliver.append((client, Delivered(pubend, LAST_TICK, lost=lost)))
            return
        reader.merge.lose(pubend, since, LAST_TICK)
        self._release(client, reader, now, out)

    # ── total order ──────────────────────────────────────────────────────────────────────

    def awaits(self, client: str, pubends: Iterable[str], now: float, out: Effects) -> None:
        reader = self._readers.get(client)
        if reader is None or reader.merge is None:
            return
        before, reader.awaited = reader.awaited, dict.fromkeys(pubends)
        for pubend, position in list(reader.positions.items()):
            if position.unheard and pubend in before and pubend not in reader.awaited:
                self._forget(self._stream(pubend), reader, position, now, out)
        reader.merge.expect_only(reader.expected())
        self._place_all(reader, now, out)
        self._release(client, reader, now, out)

    def unheard(
        self, stream: Stream, starts: tuple[Record, ...], upto: int, now: float, out: Effects
    ) -> None:
        """These are all starts up to a tick that a pubend knows of and nobody has acknowledged.
        One that the stream has shown to a client in total order, and that control never told, is
        none any more."""
        known = {(each.op.client, each.op.sequence) for each in starts}
        for client, position in list(stream.subend.positions.items()):
            reader = self._readers[client]
            if reader.merge is None or not position.unheard or stream.pubend in reader.awaited:
                continue
            if position.given <= upto and not any((client, s) in known for s in position.starts):
                self._forget(stream, reader, position, now, out)

    def left_alone(self, stream: Stream, now: float, out: Effects) -> None:
        """A pubend cannot be reached any more, and not for a while only: who merges goes on
        without it. Should it come back, what is too late then is told as a loss."""
        stream.alone = True
        for client in list(stream.subend.merged):
            reader = self._readers[client]
            if reader.merge is not None:
                reader.merge.finish(stream.pubend)
                self._release(client, reader, now, out)

    # ── coming and going ─────────────────────────────────────────────────────────────────

    def attach(
        self,
        client: str,
        cursors: Mapping[str, int],
        now: float,
        out: Effects,
        awaited: Iterable[str] | None,
        hold: bool,
        durable: bool,
        resumes: bool,
    ) -> None:
        """With `awaited`, even if empty, in total order."""
        self.detach(client, now, out)
        reader = self._readers.setdefault(client, Reader())
        reader.present = True
        reader.durable = durable
        reader.resumes = resumes
        reader.hold = hold
        reader.cursors = dict(cursors)
        if awaited is not None:
            # What was released before stands in the cursors, because a merge gives in one order;
            # but not if they are those of an application, which may take events in any.
            places = [(t, p) for p, t in cursors.items() if t < LAST_TICK and not hold]
            reader.merge = Merge(*max(places, default=(0, "")))
            reader.awaited = dict.fromkeys(awaited)
            reader.merge.expect_only(reader.expected())
        self._place_all(reader, now, out)

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
        if reader.durable and reader.resumes and cursor > position.acked:
            # Its process has these; but should it end before it is done, the next one needs them.
            position.outstanding.append((position.acked + 1, cursor, 0))
        else:
            position.acked = max(position.acked, position.given)
        stream.subend.place(position)

    def ready(self, client: str, now: float, out: Effects) -> None:
        reader = self._readers.get(client)
        if reader is not None and reader.hold:
            reader.hold = False
            self._place_all(reader, now, out)

    def begun(self, client: str) -> dict[str, int]:
        reader = self._readers.get(client)
        if reader is None:
            return {}
        begun = {p: each.given for p, each in reader.positions.items() if not each.fresh}
        return {**reader.cursors, **reader.passed, **begun}

    def detach(self, client: str, now: float, out: Effects) -> None:
        reader = self._readers.get(client)
        if reader is None or not reader.present:
            return
        reader.present = False
        reader.cursors, reader.passed = {}, {}
        reader.merge = reader.blocked = None
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

    def validate(self) -> None:
        for client, reader in self._readers.items():
            for pubend, position in reader.positions.items():
                assert self._stream(pubend).subend.positions[client] is position
                assert position.present <= reader.present
