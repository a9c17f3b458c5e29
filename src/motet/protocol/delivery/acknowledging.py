"""Acknowledgements: consolidated on the way up, expected on the way down."""

from __future__ import annotations

from motet.protocol.contract import SetTimer
from motet.protocol.delivery.curiosity import Liveness
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import AckExpected, AckUp, Knowledge
from motet.protocol.delivery.spans import Span, StartRecord
from motet.protocol.delivery.state import Effects, Floor, Stream


class Acknowledging:
    """Only what clients and neighbours have said counts. The paper counts filtered ticks as
    acknowledged where they are filtered; but then a pubend could forget a tick before those below
    have heard that it is silent, and would have to call it lost when they ask."""

    __slots__ = ("_interest", "_liveness")

    def __init__(self, interest: Interest, liveness: Liveness) -> None:
        self._interest = interest
        self._liveness = liveness

    def wanting(self, stream: Stream) -> list[str]:
        """Neighbours downstream that may be owed something."""
        interest = self._interest
        upstream = None if stream.hosted else interest.upstream(stream.pubend)
        everything = interest.pass_all()
        return [
            each
            for each in interest.neighbours()
            if each != upstream and (interest.wants(each) or interest.bit(each) & everything)
        ]

    def settled(self, stream: Stream) -> int:
        """Everything up to here is done with, below and at this broker. Who does not know all that
        is wanted below does not know what is done with there."""
        if self._interest.pass_all():
            return 0
        least = stream.frontier if stream.hosted else stream.cleared
        own = stream.subend.settled()
        if own is not None:
            least = min(least, own, stream.floor)
        for neighbour in self.wanting(stream):
            told = stream.outs.get(neighbour)
            if told is None or told.acked is None:
                return 0
            least = min(least, told.acked)
        return least

    def arm(self, stream: Stream, now: float, out: Effects) -> None:
        if not stream.ack_armed:
            stream.ack_armed = True
            key = ("delivery", "ack", stream.pubend)
            out.timers.append(SetTimer(key, now + self._liveness.ack_delay_s))

    def send(self, stream: Stream, out: Effects, repeat: bool = False) -> None:
        """Move the floor of our own clients; tell upstream if there is something to tell."""
        own = stream.subend.settled()
        if own is not None and not stream.hosted:
            own = min(own, stream.cleared)
        raised = own is not None and own > stream.floor
        if own is not None and raised:
            stream.floor = own
        notes = stream.subend.notes(stream.floor) if stream.lasting else {}
        if raised or notes:
            out.floors.append(Floor(stream.pubend, stream.floor, notes))
        if stream.hosted:
            return
        upto = self.settled(stream)
        upstream = self._interest.upstream(stream.pubend)
        if upstream is not None and upto and (upto > stream.ack_sent or repeat):
            stream.ack_sent = max(upto, stream.ack_sent)
            out.send.append((upstream, AckUp(stream.pubend, upto)))

    def expect(
        self,
        stream: Stream,
        upto: int,
        out: Effects,
        starts: tuple[StartRecord, ...] | None = None,
        only: str | None = None,
        cut: tuple[int, int] = (0, 0),
    ) -> None:
        """Ask those for an acknowledgement who have not given it, or who wait for a word about
        their subscriptions; tell them silence before. A pubend of ours knows its starts."""
        if only is None:
            for client, position in stream.subend.positions.items():
                if position.present and position.outstanding:
                    out.hurried[client] = None
        if stream.hosted:
            stands = self._interest.stands
            stream.starts = {op: each for op, each in stream.starts.items() if stands(each)}
            starts = tuple(stream.starts.values())
            cut = stream.last_cut
        asking = [name for name, told in stream.outs.items() if told.inquires]
        for neighbour in dict.fromkeys((*self.wanting(stream), *asking)):
            told = stream.outs.get(neighbour)
            if only is not None and neighbour != only:
                continue
            acked = told.acked if told is not None and told.acked is not None else -1
            inquires = told is not None and told.inquires and starts is not None
            if acked >= upto and not inquires:
                continue
            if told is not None and starts is not None:
                told.inquires = False
            silence = told.untold() if told is not None else None
            if silence is not None:
                out.send.append((neighbour, Knowledge(stream.pubend, Span(*silence))))
            own = None if starts is None else self._of(neighbour, starts)
            out.send.append((neighbour, AckExpected(stream.pubend, upto, own, cut)))

    def expect_later(self, stream: Stream, now: float, out: Effects) -> None:
        """When nothing is owed, nothing is expected, and no timer runs."""
        if not stream.expecting:
            stream.expecting = True
            at = now + self._liveness.ack_expected_s
            out.timers.append(SetTimer(("delivery", "expect", stream.pubend), at))

    def remind(self, stream: Stream, now: float, out: Effects) -> None:
        """A pubend of ours has waited: who has not acknowledged what it had then is asked."""
        self.send(stream, out)
        settled = self.settled(stream)
        stream.starts = {op: each for op, each in stream.starts.items() if each.tick > settled}
        if settled < stream.expected:
            self.expect(stream, stream.expected, out)
        stream.expected = stream.frontier
        stream.expecting = False
        if settled < stream.frontier:
            self.expect_later(stream, now, out)

    def _of(self, neighbour: str, starts: tuple[StartRecord, ...]) -> tuple[StartRecord, ...]:
        bit = self._interest.bit(neighbour)
        everything = bit & self._interest.pass_all()
        record_mask = self._interest.record_mask
        return tuple(each for each in starts if everything or record_mask(each) & bit)
