"""Counters, and their rates over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from motet.protocol.cell.messages import Inward, Said, Sideways
from motet.protocol.delivery.messages import Delivered, Knowledge
from motet.protocol.frames import Frame
from motet.protocol.link.messages import Publications
from motet.protocol.session.messages import Deliver, Publish

WINDOW = 10
"""Samples that a rate looks back on."""

_EVENTS: dict[type, Callable[[Any], int]] = {
    Publish: lambda frame: len(frame.bodies),
    Publications: lambda frame: len(frame.batch),
    Deliver: lambda frame: len(frame.batch),
    Delivered: lambda frame: len(frame.ticks),
    Knowledge: lambda frame: len(frame.span.ticks),
    Said: lambda frame: events_of(frame.frame),
    Inward: lambda frame: events_of(frame.said.frame),
    Sideways: lambda frame: events_of(frame.said.frame),
}


def events_of(frame: Frame) -> int:
    """How many events a frame carries, in whatever way they are delivered."""
    count = _EVENTS.get(type(frame))
    return 0 if count is None else count(frame)


class Traffic:
    """`frames_in` and the others count up for ever; `sample` is called every now and then."""

    __slots__ = ("_samples", "events_in", "events_out", "frames_in", "frames_out")

    def __init__(self) -> None:
        self.frames_in = self.frames_out = self.events_in = self.events_out = 0
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=WINDOW)

    def totals(self) -> dict[str, int]:
        return {
            "frames_in": self.frames_in,
            "frames_out": self.frames_out,
            "events_in": self.events_in,
            "events_out": self.events_out,
        }

    def sample(self, now: float) -> None:
        self._samples.append((now, tuple(self.totals().values())))

    def rates(self, now: float) -> dict[str, float]:
        """Per second, since the oldest sample that is kept."""
        totals = self.totals()
        since, then = self._samples[0] if self._samples else (now, tuple(totals.values()))
        span_s = max(now - since, 1e-9)
        return {
            f"{name}_per_s": round((total - old) / span_s, 1)
            for (name, total), old in zip(totals.items(), then, strict=True)
        }
