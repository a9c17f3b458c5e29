"""The clients of one broker in all pubends: their connections, positions and deliveries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from motet.model import OpId
from motet.model.ids import LAST_TICK
from motet.protocol.delivery.blocks import BlockQueues, Holding
from motet.protocol.delivery.gates import Gates, Passage
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.losses import Losses
from motet.protocol.delivery.messages import Delivered
from motet.protocol.delivery.neighbours import Acknowledgements, Nacks
from motet.protocol.delivery.spans import CutRecord, PredecessorRecord, Record, StartRecord
from motet.protocol.delivery.stream import Effects, SilenceWanted, StartSeen, Stream, SwitchSeen
from motet.protocol.delivery.subend import Position
from motet.protocol.delivery.total_order import Blocked, Merge


class Reader(Struct, eq=False):
    """One client, in all pubends."""

    present: bool = False
    resumes: bool = False
    """The same process as before: it may have events that it has not acknowledged."""
    durable: bool = False
    hold: bool = False
    """Deliver nothing of pubends that it has not begun to read before it is ready."""
    kept: Mapping[str, int] = {}
    """By pubend: its position in the durable state."""
    cursors: Mapping[str, int] = {}
    """Reported by the client when it connected: processed, or only received if it resumes."""
    passed: dict[str, int] = {}
    """By pubend where it had a position: its last one in this connection. The client has been given
    everything up to it, and a new position continues there."""
    positions: dict[str, Position] = {}
    merge: Merge | None = None
    """For a connected client in total order."""
    block_queues: BlockQueues | None = None
    """For any other connected client."""
    passage: Passage | None = None
    """The same."""
    awaited: dict[str, None] = {}
    """Pubends at which one of its subscriptions will start, or start again."""
    blocked: Blocked | None = None

    def expected(self) -> list[str]:
        """Pubends that will join its merge."""
        placed = {p: each.present for p, each in self.positions.items()}
        told = [p for p, each in self.positions.items() if each.told and not each.present]
        return [*(p for p in self.awaited if not placed.get(p)), *told]


Reach = Callable[[OpId, str], int | None]
"""The tick of a pubend above which a subscription wants events older than itself; or None."""


Doubt = Callable[[str, str], int]
"""The tick of a pubend up to which a client reads from the log, because it has moved."""


def _nowhere(op: OpId, pubend: str) -> None:
    del op, pubend


def _nothing(client: str, pubend: str) -> int:
    del client, pubend
    return 0


class Clients:
    def __init__(
        self,
        interest: Interest,
        nacks: Nacks,
        acks: Acknowledgements,
        stream: Callable[[str], Stream],
    ) -> None:
        self._interest = interest
        self._nacks = nacks
        self._acks = acks
        self._stream = stream
        self.reach: Reach = _nowhere
        self.doubt: Doubt = _nothing
        self._readers: dict[str, Reader] = {}
        self.holding = Holding(nacks, stream)
        self.gates = Gates(stream)
        self.losses = Losses(self._positions_of)

    # ── subscriptions ────────────────────────────────────────────────────────────────────

    def start(
        self,
        op: OpId,
        pubend: str,
        tick: int,
        out: Effects,
        tentative: bool = False,
        *,
        several: bool = False,
    ) -> None:
        """Control has reported the start of a subscription. A `tentative` one needs a `switch`. If
        it is one of `several`, `catch_up` follows once for all of them."""
        stream = self._stream(pubend)
        self._begin(stream, op, tick, out, tentative)
        stream.subend.positions[op.client].told = True
        if not stream.hosted:
            stream.frontier = max(stream.frontier, tick)
        if not several:
            self.catch_up(stream, out)

    def _begin(
        self, stream: Stream, op: OpId, tick: int, out: Effects, tentative: bool = False
    ) -> None:
        """A start is known, from the stream or from control; the first one counts. A tentative
        subscription gets nothing before its cut is known."""
        client = op.client
        reader = self._readers.setdefault(client, Reader())
        position = stream.subend.positions.get(client)
        if position is not None and op.sequence in position.starts:
            if not tentative and self._switch(stream, op, tick, False):  # not tentative any more
                out.started.append(StartSeen(op, stream.pubend, tick))
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
            begin = tick  # too late for older events: delivery has begun
        if begin < tick:
            position.reach(tick)
        doubt = self.doubt(client, stream.pubend)
        if doubt:
            position.doubt(doubt)
            stream.doubtful[client] = None
        level = reader.kept.get(stream.pubend, 0)
        position.level = level if position.deep_upto else max(level, stream.floor)
        position.origins[op.sequence] = tick
        position.begin(op.sequence, begin, tentative)
        upto = self._interest.end_of(op, stream.pubend)
        if tentative or upto < LAST_TICK:
            position.windows[op.sequence] = (LAST_TICK if tentative else 0, upto)
        out.started.append(StartSeen(op, stream.pubend, tick, tentative))
        if reader.present and not position.present:
            stream.held[client] = None

    def recall(self, client: str, levels: Mapping[str, int], *, durable: bool = False) -> None:
        """Before `start`: positions of a durable client, or of one that has moved here."""
        reader = self._readers.setdefault(client, Reader())
        reader.durable = reader.durable or durable
        reader.kept = {**levels, **{p: t for p, t in reader.kept.items() if t > levels.get(p, 0)}}

    def levels(self, client: str) -> dict[str, int]:
        """By pubend: what a client has acknowledged, or never had to."""
        reader = self._readers.get(client)
        if reader is None:
            return {}
        return {
            pubend: position.settled(self._stream(pubend).subend.horizon)
            for pubend, position in reader.positions.items()
        }

    def given(self, client: str) -> int:
        """The highest tick that a client was given, of any pubend."""
        reader = self._readers.get(client)
        if reader is None:
            return 0
        places = [
            position.standing(self._stream(pubend).subend.horizon)
            for pubend, position in reader.positions.items()
        ]
        merged = reader.merge.released[0] if reader.merge is not None else 0
        return max([merged, *places])

    def done(self, client: str, subscription: int, pubend: str, tick: int) -> None:
        """One subscription has been processed further than its client's position."""
        reader = self._readers.get(client)
        position = reader.positions.get(pubend) if reader is not None else None
        if position is not None and subscription in position.starts:
            position.starts[subscription] = max(tick, position.starts[subscription])
            position.barrier = max(position.barrier, tick)

    def lift(
        self,
        op: OpId,
        pubend: str,
        tick: int,
        out: Effects,
        *,
        over: bool = False,
        anew: bool = False,
    ) -> None:
        """A subscription is owed nothing up to this tick any more. `over`: nor above, until it
        starts there again. `anew`: it has a new start there, and the past that it wants is read up
        to that start."""
        position = self._position(op.client, pubend)
        if position is None:
            return
        stream = self._stream(pubend)
        if position.origins.get(op.sequence, tick) < tick:
            deep = anew and position.given < position.past_upto
            if deep and self.reach(op, pubend) is not None:
                position.origins[op.sequence] = tick
                position.reach(tick)
                self._nacks.reconsider(stream, out)
            else:
                self._raise(stream, position, op, tick, out)
        if over:
            self._lapse(stream, op, out)

    def _raise(self, stream: Stream, position: Position, op: OpId, tick: int, out: Effects) -> None:
        """Raise a start. A client below all of its starts continues at the lowest one."""
        subend = stream.subend
        wanted, past_upto = position.wanted_past()
        position.origins[op.sequence] = tick
        position.starts[op.sequence] = max(tick, position.starts[op.sequence])
        position.barrier = max(position.barrier, tick)
        least = min(position.starts.values())
        if position.standing(subend.horizon) >= least or position.merge is not None:
            return
        if position.given < position.past_upto:
            # The past that it was reading cannot be read any more: its routes are gone.
            upto = min(past_upto, least)
            if wanted <= upto:
                position.gone = (wanted, upto)
            position.past_upto = 0
            position.deep_upto = self.doubt(position.client, stream.pubend)
        was_present, block_queues = position.present, position.block_queues
        passage = position.passage
        if was_present:
            subend.absent(position)
        position.given = position.acked = least
        if was_present:
            position.block_queues, position.passage = block_queues, passage
            if block_queues is not None:
                block_queues.leave(stream.pubend)
            subend.place(position)
            subend.tell_gone(position, out.deliver)
        self.catch_up(stream, out)
        self._acks.arm(stream, out)

    def note(self, stream: Stream, records: tuple[Record, ...], out: Effects) -> None:
        """Apply records for this broker's clients; early is fine, as delivery filters by tick."""
        for record in records:
            if isinstance(record, CutRecord):
                stream.subend.cuts.note(record)
                if stream.hosted:
                    stream.last_cut = max(stream.last_cut, (record.number, record.last))
                for op, tick, ended in record.switches:
                    news = (
                        self._switch(stream, op, tick, ended)
                        if self._interest.is_ours(op)
                        else False
                    )
                    if news is None and ended:  # the end is known before the start
                        news = self._interest.end_of(op, stream.pubend) == LAST_TICK
                    if news:
                        out.switched.append(SwitchSeen(op, stream.pubend, tick, ended))
                    elif news is None:
                        self._begin(stream, op, tick, out)
            elif isinstance(record, PredecessorRecord):
                stream.subend.cuts.passed(*record.cut)
            elif self._interest.is_ours(record.op):
                op, tick = record.op, record.tick
                if tick <= self._interest.lapsed(op, stream.pubend):
                    continue
                position = stream.subend.positions.get(op.client)
                if record.tentative and position is not None and position.is_over(op, tick):
                    if position.switch(op.sequence, tick, ended=True):
                        out.switched.append(SwitchSeen(op, stream.pubend, tick, True))
                    continue
                self._begin(stream, op, tick, out, record.tentative)

    def passed_cut(self, stream: Stream, cut: tuple[int, int], out: Effects) -> None:
        """Release blocks that waited for this cut; see `AckExpected.cut`."""
        stream.subend.cuts.passed(*cut)
        self._release_blocks(out)
        self._look_at_gates(out)

    def switch(self, op: OpId, pubend: str, tick: int, ended: bool, out: Effects) -> None:
        """A cut: a subscription begins, or ends, above this tick."""
        if self._position(op.client, pubend) is not None:
            stream = self._stream(pubend)
            if self._switch(stream, op, tick, ended):
                self.catch_up(stream, out)

    def _switch(self, stream: Stream, op: OpId, tick: int, ended: bool) -> bool | None:
        """False: already known. None: no start of the subscription is known."""
        position = stream.subend.positions.get(op.client)
        if position is None or op.sequence not in position.starts:
            return None
        return position.switch(op.sequence, tick, ended)

    def _position(self, client: str, pubend: str) -> Position | None:
        reader = self._readers.get(client)
        return reader.positions.get(pubend) if reader is not None else None

    def _positions_of(self, client: str) -> Mapping[str, Position]:
        reader = self._readers.get(client)
        return reader.positions if reader is not None else {}

    def passed(self, op: OpId, pubends: Iterable[str]) -> bool | None:
        """Has the client acknowledged everything up to the end of a subscription, in those of
        these pubends where it had started? None: not before the client acknowledges more."""
        reader = self._readers.get(op.client)
        for pubend in pubends:
            position = reader.positions.get(pubend) if reader is not None else None
            if position is None or op.sequence not in position.starts:
                continue
            _, upto = position.windows.get(op.sequence, (0, LAST_TICK))
            if position.settled(self._stream(pubend).subend.horizon) < upto:
                return None if position.outstanding else False
        return True

    def effective(self, client: str, out: Effects) -> None:
        """Control has reported all starts of a client's subscription: held positions may go."""
        reader = self._readers.get(client)
        if reader is None or not reader.present:
            return
        self._place_all([reader], out)

    def end(self, op: OpId, out: Effects) -> None:
        """A subscription is over and owed nothing more. In total order, call `awaits` next."""
        reader = self._readers.get(op.client)
        if reader is None:
            return
        for pubend, position in list(reader.positions.items()):
            for each in (position.origins, position.windows, position.again):
                each.pop(op.sequence, None)
            if position.starts.pop(op.sequence, None) is not None and not position.starts:
                self._forget(self._stream(pubend), reader, position, out)
                if reader.merge is not None:
                    reader.merge.leave(pubend)
                    # Another subscription may start there: the next `awaits` decides.
                    reader.merge.expect_only([*reader.expected(), pubend])
        if not reader.positions and not reader.present:
            del self._readers[op.client]

    def _lapse(self, stream: Stream, op: OpId, out: Effects) -> None:
        """A subscription is owed nothing of a pubend until it starts there again. A client without
        another one there loses its position: ticks trimmed meanwhile are not reported as lost."""
        client = op.client
        position = stream.subend.positions.get(client)
        if position is None:
            return
        if position.given < position.past_upto and op.sequence in position.origins:
            self._raise(stream, position, op, position.origins[op.sequence], out)
        if position.gone is not None or position.outstanding:
            return
        tick, tentative = position.again.pop(op.sequence, (0, False))
        position.reminded = 0
        if tick > position.origins.get(op.sequence, tick):
            position.windows.pop(op.sequence, None)
            if tentative:
                position.windows[op.sequence] = (LAST_TICK, LAST_TICK)
            self._raise(stream, position, op, tick, out)
            out.started.append(StartSeen(op, stream.pubend, tick, tentative))
            return
        if len(position.starts) > 1:
            for each in (position.starts, position.origins, position.windows):
                each.pop(op.sequence, None)
        if op.sequence not in position.starts:
            return
        reader = self._readers[client]
        self._forget(stream, reader, position, out)
        if reader.merge is not None:
            reader.merge.leave(stream.pubend)
            reader.merge.expect_only(reader.expected())
            self._release(client, reader, out)
        if not reader.positions and not reader.present:
            del self._readers[client]

    def _forget(self, stream: Stream, reader: Reader, position: Position, out: Effects) -> None:
        stream.held.pop(position.client, None)
        if reader.block_queues is not None:
            reader.block_queues.leave(stream.pubend)
        if reader.present and not position.fresh and not position.idle:
            reader.passed[stream.pubend] = position.standing(stream.subend.horizon)
        stream.subend.remove(position)
        del reader.positions[stream.pubend]
        self._nacks.reconsider(stream, out)
        self._acks.arm(stream, out)
        self._moved(stream, out)

    def destroyed(self, stream: Stream, client: str, out: Effects) -> None:
        """No more events of a pubend will come; those that have arrived keep their order."""
        reader, pubend = self._readers[client], stream.pubend
        position = reader.positions.pop(pubend)
        since = position.standing(stream.subend.horizon) + 1
        if reader.merge is None:
            if position.present:
                passing = [Delivered(pubend, LAST_TICK, lost=((since, LAST_TICK),))]
                if reader.block_queues is not None:  # after its waiting events
                    passing = reader.block_queues.pass_by(passing[0], stream.subend.cuts)
                out.deliver.extend((client, each) for each in passing)
            self._moved(stream, out)
            return
        reader.merge.lose(pubend, since, LAST_TICK)
        self._release(client, reader, out)

    # ── total order ──────────────────────────────────────────────────────────────────────

    def awaits(self, client: str, pubends: Iterable[str], out: Effects) -> None:
        """These are all pubends that a client in total order is about to merge: it gets nothing
        more until `start` reports where. Must be called before they may publish."""
        reader = self._readers.get(client)
        if reader is None or reader.merge is None:
            return
        before, reader.awaited = reader.awaited, dict.fromkeys(pubends)
        for pubend, position in list(reader.positions.items()):
            if position.unheard and pubend in before and pubend not in reader.awaited:
                self._forget(self._stream(pubend), reader, position, out)
        reader.merge.expect_only(reader.expected())
        self._place_all([reader], out)
        self._release(client, reader, out)

    def unheard(
        self, stream: Stream, starts: tuple[StartRecord, ...], upto: int, out: Effects
    ) -> None:
        """`starts` are all unacknowledged starts up to a tick that a pubend knows. A start that
        only the stream has shown to a client in total order is void if it is not among them."""
        known = {(each.op.client, each.op.sequence) for each in starts}
        for client, position in list(stream.subend.positions.items()):
            reader = self._readers[client]
            if reader.merge is None or not position.unheard or stream.pubend in reader.awaited:
                continue
            if position.given <= upto and not any((client, s) in known for s in position.starts):
                self._forget(stream, reader, position, out)

    def left_alone(self, stream: Stream, out: Effects) -> None:
        """A pubend has been unreachable for too long: merges continue without it. If it comes back,
        events that are too late by then are reported as lost."""
        stream.alone = True
        self._moved(stream, out)
        for client, reader in list(self._readers.items()):
            concerned = client in stream.subend.merged or stream.pubend in reader.awaited
            if reader.merge is not None and concerned:
                reader.merge.finish(stream.pubend)
                self._release(client, reader, out)

    # ── delivery ─────────────────────────────────────────────────────────────────────────

    def _place_all(self, readers: Iterable[Reader], out: Effects) -> None:
        """Place all positions of these clients that are not held."""
        waiting: dict[str, Stream] = {}
        ready: dict[str, Stream] = {}
        for reader in readers:
            for pubend, position in reader.positions.items():
                if position.present:
                    continue
                stream = waiting[pubend] = self._stream(pubend)
                if self._held(stream, reader, position):
                    stream.held[position.client] = None
                    continue
                stream.held.pop(position.client, None)
                self._place(stream, reader, position)
                stream.subend.tell_gone(position, out.deliver)
                ready[pubend] = stream
        for pubend, stream in waiting.items():
            if pubend not in ready:
                self._nacks.reconsider(stream, out)
        for stream in ready.values():
            self.catch_up(stream, out)
            # What is missing now is not due to frames out of order.
            self._nacks.reconsider(stream, out, hurry=stream.frontier)
            self._acks.arm(stream, out)

    def _held(self, stream: Stream, reader: Reader, position: Position) -> bool:
        """A client that was never given anything of this pubend is held as long as another of its
        subscriptions may prove to have started earlier."""
        if not position.fresh or reader.cursors.get(stream.pubend, 0) > position.given:
            return False
        if 0 < position.level == position.given and reader.merge is None:
            return False  # it continues from its durable position
        if reader.hold:
            return True
        if reader.merge is not None:
            return stream.pubend in reader.awaited or not position.told
        return stream.cleared < position.unclear_upto and not stream.hosted

    def _place(self, stream: Stream, reader: Reader, position: Position) -> None:
        """Begin to deliver to a client, from its position, but not again what it was given in an
        earlier position: a client ignores that, and never acknowledges it."""
        pubend = stream.pubend
        cursor, passed = reader.cursors.get(pubend, 0), reader.passed.get(pubend, 0)
        floor = stream.floor if position.given >= position.deep_upto else 0
        position.given = max(position.given, cursor, passed, floor)
        position.acked = max(position.acked, passed)
        if position.gone is not None:
            position.given = max(position.given, min(position.starts.values()))
            position.gone = None if max(cursor, passed) >= position.gone[1] else position.gone
        if reader.merge is not None:
            reader.merge.join(pubend, position.given)
            if stream.alone:
                reader.merge.finish(pubend)
            position.merge = reader.merge
        position.block_queues, position.passage = reader.block_queues, reader.passage
        if reader.durable and reader.resumes and cursor > position.acked:
            # The process has these; if it ends before acknowledging, the next one needs them.
            position.outstanding.append((position.acked + 1, cursor, 0))
        else:
            position.acked = max(position.acked, position.given)
        stream.subend.place(position)

    def catch_up(self, stream: Stream, out: Effects) -> None:
        """After a change: deliver everything that can be delivered, request the rest."""
        subend = stream.subend
        subend.advance(out.deliver)
        if stream.held:
            self._place_all([self._readers[client] for client in stream.held], out)
        if subend.behind:
            for position in list(subend.behind.values()):
                subend.pump(position, out.deliver)
            subend.advance(out.deliver)
        if subend.merged:
            self.merge(stream, out)
        self._moved(stream, out)
        self._nacks.reconsider(stream, out)

    def _moved(self, stream: Stream, out: Effects) -> None:
        """Positions in a stream have changed: release what waited for that."""
        self._release_blocks(out)
        if self.gates.waiting:
            self.gates.note(stream.pubend)
        self._look_at_gates(out)

    def _release_blocks(self, out: Effects) -> None:
        if self.holding:
            before = len(out.deliver)
            self.holding.release(out)
            if len(out.deliver) > before:
                self.gates.note_all()

    def _look_at_gates(self, out: Effects) -> None:
        """Let clients pass the gates that are open now; what they are given may open others."""
        gates = self.gates
        if gates.is_looking or not (gates.fresh or gates.moved):
            return
        gates.is_looking = True
        try:
            while gates.fresh or gates.moved:
                fresh, moved = gates.changes()
                for pubend, tick in fresh.items():
                    self._seek(self._stream(pubend), tick, out)
                for pubend in moved:
                    self._open(pubend, out)
        finally:
            gates.is_looking = False

    def _open(self, pubend: str, out: Effects) -> None:
        """Let clients pass the gates that need not wait for a pubend any more."""
        opened, durable = self.gates.opened(pubend)
        if durable:
            # If a crash made them forget that a client has the earlier events, it would have to
            # forget the later ones as well.
            self._acks.send(self._stream(pubend), out)
        for name in opened:
            self.catch_up(self._stream(name), out)

    def _seek(self, stream: Stream, tick: int, out: Effects) -> None:
        """Clients wait for a pubend up to this tick, which it had once."""
        if not stream.hosted:
            stream.frontier = max(stream.frontier, tick)
        elif tick > stream.frontier:
            out.silences.append(SilenceWanted(stream.pubend, tick))
        self._nacks.reconsider(stream, out)

    def merge(self, stream: Stream, out: Effects) -> None:
        """Tell merges how far a stream has come, even if it was silent."""
        for client, position in list(stream.subend.merged.items()):
            if position.merge is not None:
                position.merge.reached(stream.pubend, position.standing(stream.subend.horizon))
                self._release(client, self._readers[client], out)

    def _release(self, client: str, reader: Reader, out: Effects) -> None:
        merge = reader.merge
        if merge is None:
            return
        out.deliver.extend((client, each) for each in merge.release())
        blocker = merge.blocker()
        if blocker is None:
            reader.blocked = None
        elif reader.blocked is None or reader.blocked.pubend != blocker:
            reader.blocked = Blocked(blocker, out.now)
        for pubend in merge.late():
            self._nacks.reconsider(self._stream(pubend), out)

    def blocked(self) -> dict[str, tuple[int, float]]:
        """By pubend: how many clients in total order wait for it, and the first since when."""
        found: dict[str, tuple[int, float]] = {}
        for reader in self._readers.values():
            if reader.blocked is not None:
                pubend, since_s = reader.blocked
                count, first_s = found.get(pubend, (0, since_s))
                found[pubend] = (count + 1, min(first_s, since_s))
        return found

    # ── connections ──────────────────────────────────────────────────────────────────────

    def attach(
        self,
        client: str,
        cursors: Mapping[str, int],
        out: Effects,
        awaited: Iterable[str] | None = None,
        hold: bool = False,
        durable: bool = False,
        resumes: bool = False,
    ) -> None:
        """The client has connected. It has processed each pubend up to its cursor; if it `resumes`,
        only received it. With `awaited`, even if empty, it wants total order. With `hold`, pubends
        that it has not begun to read wait until it is `ready`. See `Floor` for `durable`."""
        self.detach(client, out)
        reader = self._readers.setdefault(client, Reader())
        reader.present = True
        reader.durable = durable
        reader.resumes = resumes
        reader.hold = hold
        reader.cursors = dict(cursors)
        if awaited is not None:
            # The cursors show what was released before, because a merge delivers in one order;
            # but not with `hold`: an application's cursors may have advanced in any order.
            places = [(t, p) for p, t in cursors.items() if t < LAST_TICK and not hold]
            reader.merge = Merge(*max(places, default=(0, "")))
            reader.awaited = dict.fromkeys(awaited)
            expected = reader.expected()
            reader.merge.expect_only(expected)
            for pubend in expected:
                if self._stream(pubend).alone:
                    reader.merge.finish(pubend)
        else:
            queues = reader.block_queues = self.holding.begin(client, reader.positions)
            reader.passage = self.gates.begin(client, durable, reader.positions, queues)
        if not hold:
            self.losses.tell(client, cursors, out)
        self._place_all([reader], out)

    def ready(self, client: str, out: Effects) -> None:
        """A client with `hold` has made its subscriptions and begins to read."""
        reader = self._readers.get(client)
        if reader is not None and reader.hold:
            reader.hold = False
            self.losses.tell(client, reader.cursors, out)
            self._place_all([reader], out)

    def begun(self, client: str) -> dict[str, int]:
        """By pubend that a client has begun to read: its position, or its last one if it has no
        subscription there. A client that is not connected has acknowledged everything up to it.
        Where it is idle, it has not begun."""
        reader = self._readers.get(client)
        if reader is None:
            return {}
        places = reader.positions.items()
        begun = {p: each.given for p, each in places if not (each.fresh or each.idle)}
        return {**reader.cursors, **reader.passed, **begun}

    def detach(self, client: str, out: Effects) -> None:
        """The client's connection is gone. Events owed to it stay owed. If there are none, it is
        forgotten, connected or not."""
        reader = self._readers.get(client)
        if reader is None:
            return
        if reader.present:
            self._leave(client, reader, out)
        if not reader.positions:
            del self._readers[client]

    def _leave(self, client: str, reader: Reader, out: Effects) -> None:
        reader.present = False
        reader.cursors, reader.passed = {}, {}
        reader.merge = reader.blocked = reader.block_queues = reader.passage = None
        self.holding.end(client)
        self.gates.end(client)
        for pubend, position in reader.positions.items():
            stream = self._stream(pubend)
            stream.held.pop(client, None)
            stream.subend.absent(position)
            self._nacks.reconsider(stream, out)

    def acked(self, client: str, pubend: str, tick: int, out: Effects) -> None:
        """The client has processed everything up to a tick, durably if it has to."""
        self.losses.acknowledge(client, pubend, tick)
        position = self._position(client, pubend)
        if position is None or not position.present:
            return
        position.acknowledge(tick)
        stream = self._stream(pubend)
        if client in stream.subend.behind:
            self.catch_up(stream, out)
        elif self.gates.waiting:
            self._moved(stream, out)
        self._acks.arm(stream, out)

    def validate(self) -> None:
        for client, reader in self._readers.items():
            for pubend, position in reader.positions.items():
                assert self._stream(pubend).subend.positions[client] is position
                assert position.present <= reader.present
