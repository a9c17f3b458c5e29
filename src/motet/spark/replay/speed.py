"""How fast a replay goes: `10x`, ten times as fast as it happened; `90s`, all of it in so long;
`max`."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from motet.errors import MisuseError

_FORM: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>x|s|m|h)\Z")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Speed(Struct, frozen=True):
    factor: float = 0.0
    """As often as fast; 0: see `within_s`."""
    within_s: float = 0.0
    """All of it in so long; 0 as well: as fast as it goes."""

    @classmethod
    def parse(cls, text: str) -> Speed:
        word = text.strip().lower()
        if word == "max":
            return cls()
        found = _FORM.match(word)
        number = float(found["number"]) if found else 0.0
        if found is None or number <= 0:
            raise MisuseError(f"a speed is like 10x, 90s (all of it in 90 s) or max, not {text!r}")
        if found["unit"] == "x":
            return cls(factor=number)
        return cls(within_s=number * _SECONDS[found["unit"]])

    def factor_for(self, span_s: float) -> float | None:
        """For what took so long when it happened; None: as fast as it goes."""
        if self.factor:
            return self.factor
        return span_s / self.within_s if self.within_s and span_s > 0 else None


class Pace:
    """When each event is due."""

    def __init__(self, factor: float | None, first_us: int, began_s: float) -> None:
        self._factor = factor
        self._first_us = first_us
        self._began_s = began_s

    def due_s(self, time_us: int) -> float:
        """On the clock by which it began."""
        if self._factor is None:
            return self._began_s
        return self._began_s + (time_us - self._first_us) / 1e6 / self._factor
