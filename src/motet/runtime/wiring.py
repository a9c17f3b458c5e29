"""How one broker is connected to the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wiring:
    """Where a broker listens, whom it dials, and how patient it is with those who connect."""

    listen: str
    dial: Mapping[str, str] = field(default_factory=dict)
    """Neighbour to address; the other neighbours dial us."""
    hello_s: float = 5.0
    max_backlog_bytes: int = 64 * 1024 * 1024
