"""What happened when, in seconds since the story began: for the page and its pictures."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Moment:
    at_s: float
    what: str


@dataclass(frozen=True)
class Sample:
    """How far everything was."""

    at_s: float
    published: int
    handled: int
    watched: int
    archived: int
    batches: int
    """Of results that came back."""


@dataclass
class Chronicle:
    began: float = field(default_factory=time.time)
    moments: list[Moment] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    began_flowing_s: float = 0.0
    """When the first event was published."""
    killed_at_s: float | None = None
    back_at_s: float | None = None

    def now_s(self) -> float:
        return time.time() - self.began

    def note(self, what: str) -> float:
        at_s = self.now_s()
        self.moments.append(Moment(at_s, what))
        return at_s
