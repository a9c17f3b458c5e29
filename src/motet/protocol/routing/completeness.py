"""Who knows everything: whether all that lies behind a neighbour is known here, and who wants what.

A broker that has lost its state, or is new, makes everybody unsure. Advertisements come back with
the link and end with a word (`Complete`); what they attract comes back a little later, behind a
probe's echo.
"""

from __future__ import annotations

from motet.model import Filter, Hop, OpId
from motet.protocol.routing.joins import Joins
from motet.protocol.routing.messages import Advertise, Complete, Subscribe
from motet.protocol.routing.obligations import Effects
from motet.protocol.routing.state import PROBES, Wait

NOTHING = Filter()
"""What a probe advertises that only follows advertisements."""


class Completeness(Joins):
    _life: str

    def _complete_now(self, message: Complete, source: Hop) -> None:
        state = self.state
        for wait in [w for w in state.waits.values() if w.what == "restore"]:
            if wait.requester == source:  # it was about an earlier word
                del state.waits[wait.op]
        if not message.whole:
            state.complete &= ~state.bits.bit(source)
            self._declare()
            self._doubt(source)
        elif state.hosted:
            self._restore(source)
        else:
            self._whole(source)

    def _restore(self, source: Hop) -> None:
        """A neighbour has told all advertisements behind it, but subscriptions that ours attract
        there, or those from there attract elsewhere, may be on their way. A probe follows these
        advertisements and echoes behind what they attract; until then everybody gets every event,
        and nothing is acknowledged."""
        state = self.state
        bit = state.bits.bit(source)
        if state.advertisements.count(source):
            for neighbour in state.bits.names(state.bits.all_neighbours & ~bit):
                self._probe("reassure", Hop.broker(neighbour))
        if any(entry.sent & bit for entry in state.advertisements):
            self._probe("restore", source)
        else:
            self._whole(source)

    def reassure(self) -> Effects:
        """Somebody doubts whether what others want here still comes. When these probes are back,
        all that had been there before them is here."""
        for neighbour in self.state.bits.names(self.state.met):
            self._probe("reassure", Hop.broker(neighbour))
        return self._take_effects()

    def _probe(self, what: str, neighbour: Hop) -> None:
        state = self.state
        state.removals += 1
        op = OpId("", self._life, state.removals)
        state.waits[op] = Wait(op, what, neighbour, state.bits.bit(neighbour))
        self._send(neighbour.name, Advertise(op, NOTHING, echo=True, probe=True))

    def _complete(self, wait: Wait) -> None:
        if wait.what not in PROBES:
            super()._complete(wait)
        elif wait.what == "restore":
            self._whole(wait.requester)

    def _whole(self, source: Hop) -> None:
        """All that lies behind a neighbour is known."""
        state = self.state
        bit = state.bits.bit(source)
        state.complete |= bit
        for op in [op for op, (_, name) in state.lost_starts.items() if name == source.name]:
            del state.lost_starts[op]
            state.lost_ends.pop(op, None)
        self._declare()
        for wait in [w for w in state.waits.values() if w.missing & bit and w.what == "subscribe"]:
            self._reconsider(wait, source.name, bit)

    def _doubt(self, hop: Hop) -> None:
        """Something behind this neighbour was lost: what it has echoed may not hold any more, so
        subscriptions that still wait for others wait for it again."""
        bit = self.state.bits.bit(hop)
        for wait in self.state.waits.values():
            if wait.what == "subscribe" and wait.requester != hop:
                wait.missing |= bit

    def _reconsider(self, wait: Wait, neighbour: str, bit: int) -> None:
        """A subscription waited for a neighbour to tell everything; now it has. If an advertiser
        is there, a probe follows the subscription that it attracted and brings the echo."""
        entry = self.state.subscriptions.get(wait.op)
        wanted = entry.filter if entry is not None else wait.probe
        if wanted is not None and self.state.advertisements.overlapping_hops(wanted) & bit:
            self._send(neighbour, Subscribe(wait.op, wanted, echo=True, probe=True))
        else:
            self._discharge(wait, bit)

    def _declare(self) -> None:
        """Tell every neighbour that we have met if what lies behind us is known, and when that
        changes."""
        state = self.state
        everyone = state.bits.all_neighbours
        for neighbour in state.bits.names(state.met):
            bit = self._bit(neighbour)
            whole = not (everyone & ~bit & ~state.complete)
            if whole != bool(state.declared & bit):
                state.declared ^= bit
                self._send(neighbour, Complete(whole))
