"""Counters, and their rates over the last seconds."""

from __future__ import annotations

from collections import deque

WINDOW = 10
"""Samples that a rate looks back on."""


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
