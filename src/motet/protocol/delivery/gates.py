"""Gates: a client gets the events of a publisher that has moved behind those from before.

A publisher that moves continues in another pubend. There a record names the pubends that have its
earlier events, each up to a tick. A client's position does not pass this record before the client
has acknowledged these events. It does not suffice that it was given them: after its connection has
broken it gets them again, and its position here might be behind the record by then.

No gate waits for ever. It waits only for what was published before the record: gates that wait for
each other would each be older than the other. Pubends that are unreachable or destroyed, or that
the client does not read, are not waited for: if an unreachable one comes back, and tells only then
where a subscription has started, its events come late. A block of a predecessor may wait for a
pubend before a gate: such a pubend had cut before the record, and the record says so
(`PredecessorRecord.cut`). In total order there are no gates, because later events have higher
ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from motet.protocol.delivery.blocks import BlockQueues
from motet.protocol.delivery.spans import PredecessorRecord

if TYPE_CHECKING:
    from motet.protocol.delivery.stream import Stream
    from motet.protocol.delivery.subend import Position


class Passage:
    """Which gates one client may pass."""

    __slots__ = ("_client", "_gates", "_stream", "block_queues", "durable", "positions")

    def __init__(
        self,
        client: str,
        durable: bool,
        positions: Mapping[str, Position],
        block_queues: BlockQueues,
        stream: Callable[[str], Stream],
        gates: Gates,
    ) -> None:
        self._client = client
        self._stream = stream
        self._gates = gates
        self.durable = durable
        self.positions = positions
        self.block_queues = block_queues

    def is_open(self, record: PredecessorRecord) -> bool:
        """If not, the predecessors are watched until it may be."""
        closed = [each for each in record.predecessors if self._is_below(*each)]
        for pubend, tick in closed:
            self._gates.watch(self._client, pubend, tick)
        return not closed

    def _is_below(self, pubend: str, tick: int) -> bool:
        """Are events of a pubend up to this tick still to come?"""
        if self.block_queues.holds(pubend, tick):
            return True
        position = self.positions.get(pubend)
        if position is None:
            return False
        stream = self._stream(pubend)
        if stream.alone:
            return False
        if not position.present:
            return True  # it is held, and may begin further back
        return position.settled(stream.subend.horizon) < tick

    def waiting_for(self, pubend: str) -> list[str]:
        """The pubends in which the client stands at a gate that names this one."""
        return [
            name
            for name, position in self.positions.items()
            if position.gate is not None
            and any(each == pubend for each, _ in position.gate.predecessors)
        ]


class Gates:
    """All clients of a broker that wait at gates."""

    __slots__ = ("_passages", "_stream", "fresh", "is_looking", "moved", "waiting")

    def __init__(self, stream: Callable[[str], Stream]) -> None:
        self._stream = stream
        self._passages: dict[str, Passage] = {}
        self.waiting: dict[str, dict[str, int]] = {}
        """By predecessor: the clients that wait for it, and up to which tick."""
        self.fresh: dict[str, int] = {}
        """Predecessors that were not waited for before, or not as far: up to which tick."""
        self.moved: dict[str, None] = {}
        """Predecessors whose clients must be looked at."""
        self.is_looking = False

    def begin(
        self, client: str, durable: bool, positions: Mapping[str, Position], queues: BlockQueues
    ) -> Passage:
        passage = Passage(client, durable, positions, queues, self._stream, self)
        self._passages[client] = passage
        return passage

    def end(self, client: str) -> None:
        """The client is gone; entries that name it are removed when they are looked at."""
        self._passages.pop(client, None)

    def watch(self, client: str, pubend: str, tick: int) -> None:
        waiting = self.waiting.setdefault(pubend, {})
        if tick > waiting.get(client, 0):
            waiting[client] = tick
            self.fresh[pubend] = max(tick, self.fresh.get(pubend, 0))

    def note(self, pubend: str) -> None:
        """Positions in this pubend have changed."""
        if pubend in self.waiting:
            self.moved[pubend] = None

    def note_all(self) -> None:
        self.moved |= dict.fromkeys(self.waiting)

    def changes(self) -> tuple[dict[str, int], list[str]]:
        """What is to be looked at, which then counts as done."""
        fresh, moved = self.fresh, list(self.moved)
        self.fresh, self.moved = {}, {}
        return fresh, moved

    def opened(self, pubend: str) -> tuple[list[str], bool]:
        """The pubends in which clients waited for this one and need not any more, and whether one
        of these clients is durable and reads this one."""
        found: dict[str, None] = {}
        durable = False
        waiting = self.waiting.get(pubend, {})
        for client in list(waiting):
            passage = self._passages.get(client)
            names = passage.waiting_for(pubend) if passage is not None else []
            is_waiting = False
            for name in names:
                assert passage is not None
                gate = passage.positions[name].gate
                if gate is not None and not passage.is_open(gate):
                    is_waiting = True
                else:
                    found[name] = None
                    durable = durable or (passage.durable and pubend in passage.positions)
            if not is_waiting:
                waiting.pop(client)
        if not waiting:
            self.waiting.pop(pubend, None)
        return list(found), durable
