"""Acknowledgements: consolidated on the way up, expected on the way down."""

from __future__ import annotations

from motet.protocol.contract import SetTimer
from motet.protocol.delivery.curiosity import Liveness
from motet.protocol.delivery.interest import Interest
from motet.protocol.delivery.messages import AckExpected, AckUp, Knowledge
from motet.protocol.delivery.spans import Span
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

    def settled(self, stream: Stream, unlimited: int) -> int:
        """Everything up to here is done with, below and at this broker."""
        if self._interest.waiting():
            return 0  # what it will be owed may lie below the horizon of others
        least = unlimited
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

    def send(self, stream: Stream, unlimited: int, out: Effects, repeat: bool = False) -> None:
        """Move the floor of our own clients; tell upstream if there is something to tell."""
        own = stream.subend.settled()
        if own is not None and own > stream.floor and not self._interest.waiting():
            stream.floor = own
            out.floors.append(Floor(stream.pubend, own))
        if stream.hosted:
            return
        upto = self.settled(stream, unlimited)
        upstream = self._interest.upstream(stream.pubend)
        if upstream is not None and upto and (upto > stream.ack_sent or repeat):
            stream.ack_sent = max(upto, stream.ack_sent)
            out.send.append((upstream, AckUp(stream.pubend, upto)))

    def expect(
        self,
        stream: Stream,
        upto: int,
        out: Effects,
        source: str | None = None,
        only: str | None = None,
    ) -> None:
        """Ask those for an acknowledgement who have not given it; tell them silence before."""
        for neighbour in self.wanting(stream):
            told = stream.outs.get(neighbour)
            if neighbour == source or (only is not None and neighbour != only):
                continue
            if told is not None and told.acked is not None and told.acked >= upto:
                continue
            silence = told.untold() if told is not None else None
            if silence is not None:
                out.send.append((neighbour, Knowledge(stream.pubend, Span(*silence))))
            out.send.append((neighbour, AckExpected(stream.pubend, upto)))
