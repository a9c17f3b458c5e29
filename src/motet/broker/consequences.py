"""What follows from a fact."""

from __future__ import annotations

from msgspec import field

from motet.model import OpId
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.routing.obligations import Changes
from motet.protocol.session.messages import Decided, Done, Failed, Invited, Over
from motet.protocol.sinks.state import StagedBlock
from motet.protocol.transactions.state import Block


class Consequences(Changes):
    """What soft code must now carry out: talk on links, answer clients, set timers."""

    neighbours: dict[str, None] = field(default_factory=dict)
    answers: list[tuple[str, Done | Failed]] = field(default_factory=list)
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)
    fenced: list[tuple[str, str]] = field(default_factory=list)
    """Clients whose session here has ended, each with the newer epoch elsewhere."""
    closed: list[tuple[str, str]] = field(default_factory=list)
    """Sessions (client, epoch) that have ended here, for whatever reason."""
    tell: list[tuple[str, Invited | Decided | Over]] = field(default_factory=list)
    """What clients of ours hear of transactions."""
    blocks: list[Block] = field(default_factory=list)
    """Cuts that must go into our log."""
    staged: list[StagedBlock] = field(default_factory=list)
    """Batches of sinks that must go into our log."""
    ending: list[OpId] = field(default_factory=list)
    """Subscriptions of our clients that a transaction has ended."""
    settled: list[OpId] = field(default_factory=list)
    """Subscriptions that ended, in a decision that is in effect everywhere now."""
    released: bool = False
    """A transaction has moved on: what had to stay because of it may go."""

    @property
    def concern_streams(self) -> bool:
        return bool(
            self.starts
            or self.restarted
            or self.blocks
            or self.staged
            or self.ending
            or self.settled
            or self.switched
            or self.started
            or self.lifted
            or self.awaiting
            or self.rerouted
            or self.ended
            or self.retired
            or self.destroyed
            or self.closed
            or self.released
        )
