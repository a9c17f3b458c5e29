"""The clients of one broker in all streams: who is here, where each stands, what starts, ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from motet.model import OpId
from motet.model.ticks import LAST_TICK
from motet.protocol.delivery.giving import Giving
from motet.protocol.delivery.merge import Merge
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.position import Position
from motet.protocol.delivery.reader import Reader
from motet.protocol.delivery.spans import CutRecord, Record, StartRecord
from motet.protocol.delivery.state import Effects, Started, Stream, Switched


class Clients(Giving):
    # ── subscriptions ────────────────────────────────────────────────────────────────────

    def begin(
        self,
        stream: Stream,
        client: str,
        op: OpId,
        tick: int,
        out: Effects,
        tentative: bool = False,
    ) -> None:
        """A start tick is known, from the stream or from control; the first one counts. Of a
        tentative one nothing is given before its cut is known."""
        reader = self._readers.setdefault(client, Reader())
        position = stream.subend.positions.get(client)
        if position is not None and op.sequence in position.starts:
            if not tentative and self.switch(stream, op, tick, False):  # not tentative any more
                out.started.append(Started(client, op, stream.pubend, tick))
            if tick > position.origins.get(op.sequence, tick):
                position.begin_again(op.sequence, tick, tentative)
            return
        since = None
        if reader.merge is None or not reader.merge.released[0]:
            since = self.reach(op, stream.pubend)
        begin = tick if since is None else min(since, tick)
        if position is None:
            position = Position(client, begin, durable=reader.durable)
            stream.subend.positions[client] = reader.positions[stream.pubend] = position
            stream.lasting = stream.lasting or reader.durable
        elif begin < tick and not stream.subend.step_back(position):
            begin = tick  # what lies behind it has passed by
        if begin < tick:
            position.reach(tick)
        level = reader.kept.get(stream.pubend, 0)
        position.level = level if position.deep_upto else max(level, stream.floor)
        position.origins[op.sequence] = tick
        position.begin(op.sequence, begin, tentative)
        upto = self._interest.end_of(op, stream.pubend)
        if tentative or upto < LAST_TICK:
            position.windows[op.sequence] = (LAST_TICK if tentative else 0, upto)
        out.started.append(Started(client, op, stream.pubend, tick, tentative))
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
        """A start moves up."""
        position = stream.subend.positions.get(op.client)
        if position is not None and position.origins.get(op.sequence, tick) < tick:
            self._raise(stream, position, op, tick, now, out)

    def _raise(
        self, stream: Stream, position: Position, op: OpId, tick: int, now: float, out: Effects
    ) -> None:
        """Who stands below all of its starts goes on from the lowest one."""
        subend = stream.subend
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
        was_present, together = position.present, position.together
        if was_present:
            subend.absent(position)
        position.given = position.acked = least
        if was_present:
            position.together = together
            if together is not None:
                together.leave(stream.pubend)
            subend.place(position)
            subend.tell_gone(position, out.deliver)
        self.catch_up(stream, now, out)
        self._acks.arm(stream, now, out)

    def note(self, stream: Stream, records: tuple[Record, ...], out: Effects) -> None:
        """Records that concern clients of ours. What is filtered by ticks may be known early."""
        for record in records:
            if isinstance(record, CutRecord):
                stream.subend.cuts.note(record)
                if stream.hosted:
                    stream.last_cut = max(stream.last_cut, (record.number, record.last))
                for op, tick, ended in record.switches:
                    news = self.switch(stream, op, tick, ended) if self._is_ours(op) else False
                    if news is None and ended:  # it is known before its start is
                        news = self._interest.end_of(op, stream.pubend) == LAST_TICK
                    if news:
                        out.switched.append(Switched(op, stream.pubend, tick, ended))
                    elif news is None:
                        self.begin(stream, op.client, op, tick, out)
            elif self._is_ours(record.op):
                op, tick = record.op, record.tick
                if tick <= self._interest.lapsed(op, stream.pubend):
                    continue
                position = stream.subend.positions.get(op.client)
                if record.tentative and position is not None and position.is_over(op, tick):
                    if position.switch(op.sequence, tick, ended=True):
                        out.switched.append(Switched(op, stream.pubend, tick, True))
                    continue
                self.begin(stream, op.client, op, tick, out, record.tentative)

    def passed_cut(self, stream: Stream, cut: tuple[int, int], now: float, out: Effects) -> None:
        """See `AckExpected.cut`: perhaps somebody waits for it."""
        stream.subend.cuts.passed(*cut)
        if self.holding:
            self.holding.release(now, out)

    def _is_ours(self, op: OpId) -> bool:
        return 0 != self._interest.op_mask(op) == self._interest.client_bit(op.client)

    def switch(self, stream: Stream, op: OpId, tick: int, ended: bool) -> bool | None:
        """A subscription begins, or ends, with a cut. False: that is known; None: no start is."""
        position = stream.subend.positions.get(op.client)
        if position is None or op.sequence not in position.starts:
            return None
        return position.switch(op.sequence, tick, ended)

    def passed(self, op: OpId, pubends: Iterable[str]) -> bool | None:
        """Has a subscription been given, and its client acknowledged, all up to where it ends in
        these pubends, wherever it had started? None: not before the client acknowledges more."""
        reader = self._readers.get(op.client)
        for pubend in pubends:
            position = reader.positions.get(pubend) if reader is not None else None
            if position is None or op.sequence not in position.starts:
                continue
            _, upto = position.windows.get(op.sequence, (0, LAST_TICK))
            if position.settled(self._stream(pubend).subend.horizon) < upto:
                return None if position.outstanding else False
        return True

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
            for each in (position.origins, position.windows, position.again):
                each.pop(op.sequence, None)
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
        if position is None:
            return
        if position.given < position.deep_upto and op.sequence in position.origins:
            self._raise(stream, position, op, position.origins[op.sequence], now, out)
        if position.gone is not None or position.outstanding:
            return
        tick, tentative = position.again.pop(op.sequence, (0, False))
        position.reminded = 0
        if tick > position.origins.get(op.sequence, tick):
            position.windows.pop(op.sequence, None)
            if tentative:
                position.windows[op.sequence] = (LAST_TICK, LAST_TICK)
            self.lift(stream, op, tick, now, out)
            out.started.append(Started(client, op, stream.pubend, tick, tentative))
            return
        if len(position.starts) > 1:
            for each in (position.starts, position.origins, position.windows):
                each.pop(op.sequence, None)
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
        if reader.together is not None:
            reader.together.leave(stream.pubend)
        if reader.present and not position.fresh:
            reader.passed[stream.pubend] = position.standing(stream.subend.horizon)
        stream.subend.remove(position)
        del reader.positions[stream.pubend]
        self._asking.reconsider(stream, now, out)
        self._acks.arm(stream, now, out)
        if self.holding:
            self.holding.release(now, out)

    def destroyed(self, stream: Stream, client: str, now: float, out: Effects) -> None:
        """Nothing more comes of a pubend; what has come already keeps its place."""
        reader, pubend = self._readers[client], stream.pubend
        position = reader.positions.pop(pubend)
        since = position.standing(stream.subend.horizon) + 1
        if reader.merge is None:
            if position.present:
                passing = [Delivered(pubend, LAST_TICK, lost=((since, LAST_TICK),))]
                if reader.together is not None:  # behind what waits of it
                    passing = reader.together.pass_by(passing[0], stream.subend.cuts)
                out.deliver.extend((client, each) for each in passing)
            if self.holding:
                self.holding.release(now, out)
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
        self, stream: Stream, starts: tuple[StartRecord, ...], upto: int, now: float, out: Effects
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
        if self.holding:
            self.holding.release(now, out)
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
        else:
            reader.together = self.holding.begin(client, reader.positions)
        self._place_all(reader, now, out)

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
        reader.merge = reader.blocked = reader.together = None
        self.holding.end(client)
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

    def validate(self) -> None:
        for client, reader in self._readers.items():
            for pubend, position in reader.positions.items():
                assert self._stream(pubend).subend.positions[client] is position
                assert position.present <= reader.present
