"""The results of an experiment beside those of its paper: figures, JSON, and a page to read."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from motet_labs.figures import VERDICTS


@dataclass(frozen=True)
class PaperFigure:
    """`paper`: what the paper says, in words; `holds`: whether Motet is at least as good, where
    that applies."""

    part: str
    name: str
    value: float
    unit: str
    paper: str = ""
    holds: bool | None = None

    @property
    def shown(self) -> str:
        return f"{self.value:,.0f}" if abs(self.value) >= 100 else f"{self.value:.3g}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"value": float(f"{self.value:.4g}")}


class Section(NamedTuple):
    """A section of a page: one part, with the text before its figures and after its pictures."""

    part: str
    title: str
    before: Sequence[str] = ()
    after: Sequence[str] = ()


@dataclass(frozen=True)
class ExperimentReport(ABC):
    """What all experiments report; each adds its own."""

    name: ClassVar[str]
    title: ClassVar[str]
    violation: ClassVar[str]
    """The violation that was seen if `kept` is false."""

    began: datetime
    took_s: float
    machine: dict[str, Any]

    @property
    @abstractmethod
    def findings(self) -> list[PaperFigure]: ...

    @property
    @abstractmethod
    def kept(self) -> bool: ...

    @property
    @abstractmethod
    def setting(self) -> str:
        """How and where it was measured."""

    @abstractmethod
    def sections(self) -> list[Section]: ...

    @abstractmethod
    def details(self, series: bool) -> dict[str, Any]: ...

    def to_json(self, *, series: bool = False) -> dict[str, Any]:
        """`series`: include every single event."""
        head = {
            "experiment": self.name,
            "date": self.began.isoformat(timespec="seconds"),
            "seconds": round(self.took_s, 1),
            "machine": self.machine,
            "kept": self.kept,
            "results": [finding.to_json() for finding in self.findings],
        }
        return head | self.details(series)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_json(series=True), ensure_ascii=False, allow_nan=False)
        (directory / f"{self.name}.json").write_text(text + "\n", encoding="utf-8")

    def page(self, pictures: Iterable[Path] = ()) -> str:
        """Markdown; the pictures must be in the same folder."""
        drawn = [path.name for path in pictures]
        blocks = [f"# {self.title}", self.setting]
        for section in self.sections():
            found = [each for each in self.findings if each.part == section.part]
            rows = (
                [each.name, each.shown, each.unit, each.paper or "–", VERDICTS[each.holds].plain]
                for each in found
            )
            figures = table(["figure", "here", "unit", "the paper", "holds"], rows)
            own = [name for name in drawn if name.startswith(section.part)]
            shown = [f"![{section.title}]({name})" for name in own]
            blocks += [f"## {section.title}", *section.before, figures, *shown, *section.after]
        return "\n\n".join(blocks) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
