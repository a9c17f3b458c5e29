"""What follows from a fact."""

from __future__ import annotations

from msgspec import Struct

from motet.model import OpId
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.routing.messages import Started, Switched
from motet.protocol.session.messages import Decided, Done, Failed, Invited, Over
from motet.protocol.transactions.state import Block


class Consequences(Struct):
    """What soft code must now carry out: talk on links, answer clients, set timers."""

    neighbours: dict[str, None] = {}
    answers: list[tuple[str, Done | Failed]] = []
    timers: list[SetTimer | CancelTimer] = []
    fenced: list[tuple[str, str]] = []
    """Clients whose session here has ended, each with the newer epoch elsewhere."""
    closed: list[tuple[str, str]] = []
    """Sessions (client, epoch) that have ended here, for whatever reason."""
    tell: list[tuple[str, Invited | Decided | Over]] = []
    """What clients of ours hear of transactions."""
    blocks: list[Block] = []
    """Cuts that must go into our log."""
    ending: list[OpId] = []
    """Subscriptions of our clients that a transaction has ended."""
    settled: list[OpId] = []
    """Subscriptions that ended, in a decision that is in effect everywhere now."""
    switched: list[Switched] = []
    """Where subscriptions of our clients begin, or end, because of a cut."""
    starts: list[tuple[int, OpId, bool]] = []
    """Subscriptions whose start must go into our log."""
    restarted: list[tuple[int, OpId, bool]] = []
    """Subscriptions whose start is in our log, and counts again."""
    started: list[Started] = []
    """What subscriptions of our clients are owed from now on."""
    lifted: list[Started] = []
    """What subscriptions of our clients are not owed any more."""
    ended: list[OpId] = []
    """Subscriptions of our clients that are over."""
    retired: list[OpId] = []
    """Advertisements of our clients that are over once their events have arrived."""
    destroyed: list[str] = []
    """Pubends whose log does not exist any more."""
    awaiting: dict[str, None] = {}
    """Clients of ours in total order that wait for other starts than before."""
    rerouted: bool = False
    """The way to a pubend is another one."""
    released: bool = False
    """A transaction has moved on: what had to stay because of it may go."""

    @property
    def concern_streams(self) -> bool:
        return bool(
            self.starts
            or self.restarted
            or self.blocks
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
