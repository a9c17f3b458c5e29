"""What follows from a fact."""

from __future__ import annotations

from motet.model import OpId
from motet.protocol.contract import CancelTimer, SetTimer
from motet.protocol.routing.messages import Started, Switched
from motet.protocol.session.messages import Decided, Done, Failed, Invited, Over
from motet.protocol.transactions.state import Block


class Consequences:
    """What soft code must now carry out: talk on links, answer clients, set timers."""

    __slots__ = (
        "answers",
        "awaiting",
        "blocks",
        "closed",
        "destroyed",
        "ended",
        "ending",
        "fenced",
        "lifted",
        "neighbours",
        "released",
        "rerouted",
        "restarted",
        "retired",
        "settled",
        "started",
        "starts",
        "switched",
        "tell",
        "timers",
    )

    def __init__(self) -> None:
        self.neighbours: dict[str, None] = {}
        self.answers: list[tuple[str, Done | Failed]] = []
        self.timers: list[SetTimer | CancelTimer] = []
        self.fenced: list[tuple[str, str]] = []
        """Clients whose session here has ended, each with the newer epoch elsewhere."""
        self.closed: list[tuple[str, str]] = []
        """Sessions (client, epoch) that have ended here, for whatever reason."""
        self.tell: list[tuple[str, Invited | Decided | Over]] = []
        """What clients of ours hear of transactions."""
        self.blocks: list[Block] = []
        """Cuts that must go into our log."""
        self.ending: list[OpId] = []
        """Subscriptions of our clients that a transaction has ended."""
        self.settled: list[OpId] = []
        """Subscriptions that ended, in a decision that is in effect everywhere now."""
        self.switched: list[Switched] = []
        """Where subscriptions of our clients begin, or end, because of a cut."""
        self.starts: list[tuple[int, OpId, bool]] = []
        """Subscriptions whose start must go into our log."""
        self.restarted: list[tuple[int, OpId, bool]] = []
        """Subscriptions whose start is in our log, and counts again."""
        self.started: list[Started] = []
        """What subscriptions of our clients are owed from now on."""
        self.lifted: list[Started] = []
        """What subscriptions of our clients are not owed any more."""
        self.ended: list[OpId] = []
        """Subscriptions of our clients that are over."""
        self.retired: list[OpId] = []
        """Advertisements of our clients that are over once their events have arrived."""
        self.destroyed: list[str] = []
        """Pubends whose log does not exist any more."""
        self.awaiting: dict[str, None] = {}
        """Clients of ours in total order that wait for other starts than before."""
        self.rerouted = False
        """The way to a pubend is another one."""
        self.released = False
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
