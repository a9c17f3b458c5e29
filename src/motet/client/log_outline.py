"""How much is in a range of a stream, and which transactions: what plans of reading rest on."""

from __future__ import annotations

from motet.protocol.reading.messages import REST, LogStep, Outline

__all__ = ["REST", "LogOutline", "LogStep"]


class LogOutline:
    """The stream of a pubend from tick `since` to tick `upto`, in steps that follow each other. A
    step with a `tx` has the events of one transaction; any other ends in none."""

    def __init__(self, pubend: str) -> None:
        self.pubend = pubend
        self.since = 0
        self.upto = -1
        self.last_tick = 0
        """The last one that is durable."""
        self.steps: list[LogStep] = []
        self.lost: list[tuple[int, int]] = []
        """First and last ticks of what is not kept any more."""
        self.events = 0
        self.size_bytes = 0

    def take(self, answer: Outline) -> None:
        """The next piece of it."""
        self.since = self.since or answer.since
        self.upto = answer.upto
        self.last_tick = answer.last_tick
        if answer.lost:
            self.lost.append((answer.since, answer.upto))
        self.steps += answer.steps
        self.events += sum(each.events for each in answer.steps)
        self.size_bytes += sum(each.size_bytes for each in answer.steps)

    def __repr__(self) -> str:
        return f"<LogOutline {self.pubend} {self.since}–{self.upto}: {self.events} events>"
