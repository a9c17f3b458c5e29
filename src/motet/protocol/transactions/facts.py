"""Facts of transactions: cuts, what they begin and end, and timeouts."""

from __future__ import annotations

from msgspec import Struct

from motet.model import OpId


class SwitchLearnt(Struct, tag="switch", array_like=True, frozen=True):
    """A subscription of a local client begins, or ends, after this tick because of a cut."""

    op: OpId
    pubend: str
    tick: int
    ended: bool


class SubscriptionOver(Struct, tag="passed", array_like=True, frozen=True):
    """A subscription that a transaction has ended has received everything that it was owed."""

    op: OpId


class TransactionOverdue(Struct, tag="overdue", array_like=True, frozen=True):
    tx: str


class CutMade(Struct, tag="cut", array_like=True, frozen=True):
    """Our pubend cuts for a transaction at this tick. This is final."""

    tx: str
    tick: int


class CutLogged(Struct, tag="cut-logged", array_like=True, frozen=True):
    """The pubend's log contains the cut and the events after it."""

    tx: str


TransactionFact = SwitchLearnt | SubscriptionOver | TransactionOverdue | CutMade | CutLogged
