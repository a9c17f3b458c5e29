"""What the machine must know about filters, neighbours and clients. The broker answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from motet.model import OpId
from motet.protocol.delivery.spans import Record, StartRecord
from motet.protocol.publication import Publication


class Way(NamedTuple):
    """What a mask of hops means: neighbours, clients with one subscription and its sequence,
    clients with several subscriptions. In a fixed order."""

    neighbours: tuple[str, ...]
    single: tuple[tuple[str, tuple[int, ...]], ...]
    several: tuple[str, ...]


class Interest(Protocol):
    """Answers hold until the tables change; `way` should be remembered by its implementer."""

    def masks(self, batch: list[Publication]) -> list[int]:
        """For each publication the hops, neighbours and clients, whose subscriptions match."""

    def record_mask(self, record: Record) -> int:
        """The hops that the record's subscriptions came from; 0 if none is known here."""

    def op_mask(self, op: OpId) -> int:
        """The same of one subscription."""

    def stands(self, record: StartRecord) -> bool:
        """Of a pubend of ours: does the subscription still start there? With the advertisement
        that it rested on the start has gone."""

    def lapsed(self, op: OpId, pubend: str) -> int:
        """A start of a subscription of ours in a pubend, up to this tick, is over."""

    def end_of(self, op: OpId, pubend: str) -> int:
        """The last tick that is owed to it there: the last of all unless a transaction ended it."""

    def way(self, mask: int) -> Way: ...

    def subscriptions_of(self, publication: Publication, client: str) -> tuple[int, ...]:
        """Sequences of a client's matching subscriptions."""

    def bit(self, neighbour: str) -> int:
        """Of a neighbour, or of one of its members that has asked something (`cell/member`)."""

    def client_bit(self, client: str) -> int: ...

    def neighbours(self) -> Sequence[str]: ...

    def upstream(self, pubend: str) -> str | None:
        """The neighbour towards the pubend's broker; None if it is here, or not known."""

    def pass_all(self) -> int:
        """Neighbours whose interest is not restored: they get everything. As long as there are
        any, nothing is acknowledged."""

    def wants(self, neighbour: str) -> bool:
        """Has it any subscription here?"""
