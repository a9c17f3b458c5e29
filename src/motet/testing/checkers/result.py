"""The result of a checker, and its view of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from motet.broker.core.durable import Durable
    from motet.protocol.link.machine import Link


class BrokerState(Protocol):
    """A checker's read-only view of one broker."""

    @property
    def durable(self) -> Durable:
        """Routing tables, sessions and transactions."""

    @property
    def links(self) -> Mapping[str, Link]:
        """By neighbour."""


@dataclass(slots=True)
class CheckResult:
    """`checked` counts the tests made, so that "no violation" differs from "nothing tested"."""

    guarantee: str
    checked: int = 0
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, detail: str, *evidence: object) -> None:
        """Count one test. `detail` is a format string, filled in only if the test fails."""
        if not self.holds(holds):
            self.violated(detail.format(*evidence))

    def holds(self, condition: bool) -> bool:
        """Count one test; if it fails, the caller reports it with `violated`."""
        self.checked += 1
        return condition

    def violated(self, detail: str) -> None:
        self.violations.append(detail)
