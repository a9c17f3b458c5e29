"""The head's side of a cell: its durable state at every mate.

A mate that comes gets all of it, then every fact in order. Once it has caught up it counts: from
then on nothing that rests on a fact leaves the head before the mate has that fact. A mate that
takes too long is given up: its connection is closed, and it begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.broker.image import parts_of
from motet.broker.records import Founded, encode
from motet.errors import ProtocolError
from motet.protocol.cell.messages import Facts, FactsAck, ImagePart
from motet.protocol.contract import CancelTimer, Close, Output, SetTimer

if TYPE_CHECKING:
    from motet.broker.durable import Durable


NONE = -1
"""Nothing is confirmed yet."""


class Mirrored:
    """One mate that is connected."""

    __slots__ = ("acked", "armed", "connection", "counts", "floor", "target")

    def __init__(self, connection: int, number: int) -> None:
        self.connection = connection
        self.acked = number - 1
        self.counts = False
        self.floor = 0
        """Facts up to this one left without waiting for the mate."""
        self.armed = False
        self.target = 0

    @property
    def confirmed(self) -> int:
        """Up to here everything waited for the mate, or stood in what it began with."""
        return self.acked if self.counts and self.acked >= self.floor else NONE


class Mirror:
    def __init__(self, durable: Durable, patience_s: float) -> None:
        self._durable = durable
        self._patience_s = patience_s
        self.count = 0
        """Facts of this life."""
        self.mates: dict[str, Mirrored] = {}

    def withheld(self) -> int:
        """So many facts, the last ones, are not at all mates that count."""
        had = [max(m.acked, m.floor) for m in self.mates.values() if m.counts]
        return self.count - min(had, default=self.count)

    def begin(self, mate: str, connection: int, out: Output) -> None:
        """A mate is there: it gets everything, as of now."""
        assert not out.persist, "what a step has changed is not in the count yet"
        number = self.count
        payloads = list(image_of(self._durable))
        for at, payload in enumerate(payloads, 1):
            out.send.append((connection, ImagePart(number, at, len(payloads), payload)))
        self.mates[mate] = Mirrored(connection, number)

    def acked(self, mate: str, ack: FactsAck, out: Output, now: float) -> None:
        mirrored = self.mates.get(mate)
        if mirrored is None or ack.upto <= mirrored.acked:
            return
        if ack.upto > self.count + len(out.persist):
            raise ProtocolError(f"{mate} acknowledges facts that are not there yet")
        mirrored.acked = ack.upto
        if not mirrored.counts:
            mirrored.counts = True
            mirrored.floor = self.count
        if mirrored.confirmed != NONE:
            out.send.append((mirrored.connection, Facts(ack.upto + 1, (), ack.upto)))
        self._watch(mate, mirrored, out, now)

    def after(self, out: Output, now: float) -> None:
        """At the end of a step: its facts go to all mates."""
        if not out.persist:
            return
        first = self.count + 1
        self.count += len(out.persist)
        if not self.mates:
            return
        payloads = tuple(encode(fact) for fact in out.persist)
        facts = [(m.connection, Facts(first, payloads, m.confirmed)) for m in self.mates.values()]
        out.send[:0] = facts  # before anything of this step that may wait for the mates
        for name, mirrored in self.mates.items():
            self._watch(name, mirrored, out, now)

    def _watch(self, mate: str, mirrored: Mirrored, out: Output, now: float) -> None:
        if mirrored.counts and not mirrored.armed and mirrored.acked < self.count:
            mirrored.armed = True
            mirrored.target = self.count
            out.timers.append(SetTimer(("mirror", mate), now + self._patience_s))

    def alarm(self, mate: str, out: Output, now: float) -> str:
        """Why a mate is given up, if it is."""
        mirrored = self.mates.get(mate)
        if mirrored is None:
            return ""
        mirrored.armed = False
        if mirrored.counts and mirrored.acked < mirrored.target:
            text = f"{mate} has not taken a fact within {self._patience_s:g} s"
            out.close.append(Close(mirrored.connection, "", text))
            return text
        self._watch(mate, mirrored, out, now)
        return ""

    def gone(self, mate: str, connection: int, out: Output) -> None:
        mirrored = self.mates.get(mate)
        if mirrored is not None and mirrored.connection == connection:
            del self.mates[mate]
            out.timers.append(CancelTimer(("mirror", mate)))


def image_of(durable: Durable) -> list[bytes]:
    """What a mate begins with. What may have to be sent again is the head's own business."""
    config = durable.config
    neighbours = tuple(durable.ledgers)
    founded = Founded(config.name, config.incarnation, neighbours, config.covering, config.root)
    return [encode(founded), *(encode(part) for part in parts_of(durable, outboxes=False))]
