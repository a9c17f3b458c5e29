"""One case, event by event: what it needs to remember between them, and what each tells. It says
the same as `visits` does of all cases at once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from msgspec import Struct

COMPLETE, START = "complete", "start"


class Happened(NamedTuple):
    time: datetime
    step: str
    agent: str | None
    transition: str


class Visit(NamedTuple):
    step: str
    agent: str | None
    handed_by: str | None
    ready: datetime | None
    start: datetime | None
    end: datetime


class Case(Struct):
    """Small: it is kept for every case that is not over."""

    ready: datetime | None = None
    agent: str | None = None
    started: dict[str, datetime] = {}
    """By step that is under way, since when."""
    latest: datetime | None = None

    def take(self, events: Iterable[Happened]) -> list[Visit]:
        """Events in order; the visits that they end."""
        ended = []
        for each in events:
            self.latest = max(self.latest or each.time, each.time)
            if each.transition == START:
                self.started[each.step] = each.time
                continue
            start = self.started.pop(each.step, None)
            ended.append(Visit(each.step, each.agent, self.agent, self.ready, start, each.time))
            self.ready, self.agent = each.time, each.agent
        return ended
