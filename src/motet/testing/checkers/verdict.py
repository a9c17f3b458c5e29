"""What a checker says."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdict:
    """`checked` counts what was really put to the test, so that silence can be told from peace."""

    guarantee: str
    checked: int = 0
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, detail: str, *evidence: object) -> None:
        """Count one test. `detail` is a format for the evidence, only used when needed."""
        self.checked += 1
        if not holds:
            self.violations.append(detail.format(*evidence))
