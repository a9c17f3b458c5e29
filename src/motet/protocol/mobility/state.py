"""Durable state of mobility at one broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from motet.model import OpId
from motet.model.ids import LAST_TICK
from motet.protocol.delivery.spans import Range
from motet.protocol.mobility.messages import MoveCommit
from motet.protocol.session.messages import Refusal


class Transit(Struct):
    """A session that has passed here and has not been reported to have arrived."""

    commit: MoveCommit
    pre: str
    """The neighbour that it came from; empty: it was a session of this broker, or that neighbour
    has been forgotten or removed meanwhile."""
    suc: str


class Forwarding(Struct):
    """Where a session of this broker has gone."""

    epoch: str
    broker: str
    address: str
    number: int = 0
    """The session's move with which it left."""


class Travel(Struct):
    """Of a session that has arrived here: what it has brought along."""

    epoch: str
    number: int = 0
    """How often the session has moved."""
    carried: int = 0
    """Publications up to this number are in other logs, or were refused."""
    levels: dict[str, int] = field(default_factory=dict)
    """By pubend: what its client had acknowledged when it arrived. It may be below the floor."""
    doubts: dict[str, int] = field(default_factory=dict)
    """By pubend: ticks up to this one are read from the log, because brokers on the way may call
    them silent."""
    predecessors: dict[str, int] = field(default_factory=dict)
    """By pubend: the last tick of the client's publications there, if some may still be owed."""
    trail: dict[str, int] = field(default_factory=dict)
    """By pubend: the last tick of the client's publications there, owed or not. Readers of logs
    may be further behind than any subscriber."""

    cut: int = 0
    """The number of the last decision for which the former pubend has cut."""
    unsettled: int = 0
    """See `MoveCommit`."""
    probe: OpId | None = None
    """When it is echoed, all clients in total order have asked for their starts."""
    announced: OpId | None = None
    """When it is echoed, all subscribers know that the client publishes here. None: nobody has
    asked."""
    awaited: bool = False
    """Plans wait until the client publishes here: what it has sent before comes before them."""
    refused: tuple[Refusal, ...] = ()
    forgotten: int = 0
    forgot: bool = False
    """See `ClientSoft`."""
    gone: dict[str, Range] = field(default_factory=dict)
    """See `MoveCommit`."""

    @property
    def unclear(self) -> list[str]:
        """Pubends where a subscription may have started without its client's broker knowing."""
        return [pubend for pubend in self.doubts if pubend not in self.levels]

    def settle(self, pubend: str, floor: int) -> None:
        """All clients here have acknowledged a pubend up to this floor."""
        if self.doubts.get(pubend, LAST_TICK) <= floor:
            del self.doubts[pubend]
        if self.levels.get(pubend, LAST_TICK) <= floor and pubend not in self.doubts:
            del self.levels[pubend]

    def passed(self, pubend: str) -> None:
        """Its client has passed what it had doubts about, and stands at the floor or above."""
        self.doubts.pop(pubend, None)
        self.levels.pop(pubend, None)


class HeldEcho(Struct):
    """The echo of an advertisement, or of a probe. It says that all clients in total order have
    asked for their starts, so it waits for those that had passed here and not arrived."""

    op: OpId
    requester: str
    behind: dict[str, None]
    """Their transits."""


class MobilityState(Struct):
    transits: dict[str, Transit] = field(default_factory=dict)
    """By client and epoch: see `key_of`."""
    forwardings: dict[str, Forwarding] = field(default_factory=dict)
    """By client."""
    travels: dict[str, Travel] = field(default_factory=dict)
    """By local client."""
    fenced: dict[str, None] = field(default_factory=dict)
    """Neighbours that were told of an arrival: acknowledgements to them say what they follow."""
    swept: dict[str, int] = field(default_factory=dict)
    """By neighbour: the number of the last control message that has lowered what the neighbour had
    acknowledged. Acknowledgements sent before it are void."""
    heard: int = 0
    """In an image only: see `DecisionState`. Nobody but clients that arrive depends on it."""
    echoes: list[HeldEcho] = field(default_factory=list)
    """In the order in which they became due."""

    def __bool__(self) -> bool:
        parts = (self.transits, self.forwardings, self.travels, self.fenced, self.swept)
        return any((*parts, self.heard, self.echoes))


def key_of(client: str, epoch: str) -> str:
    return f"{client}\n{epoch}"


def pinned_by(commit: MoveCommit) -> dict[str, int]:
    """By pubend: nobody on the path may acknowledge more before the session has arrived. Nothing,
    where a subscription may have started without its client's broker knowing."""
    return {pubend: commit.levels.get(pubend, 0) for pubend in (*commit.levels, *commit.doubts)}


class Pins(dict[str, int]):
    """By pubend: the lowest pin of all transits."""

    def renew(self, transits: Iterable[Transit]) -> None:
        self.clear()
        for transit in transits:
            self.add(pinned_by(transit.commit))

    def add(self, pinned: Mapping[str, int]) -> None:
        for pubend, tick in pinned.items():
            self[pubend] = min(tick, self.get(pubend, LAST_TICK))
