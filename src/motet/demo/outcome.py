"""What is asked of the demo, who hears of it, and all that it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from motet.demo.cast import Heard
from motet.demo.chronicle import Chronicle, Sample
from motet.demo.handing import HandOvers
from motet.demo.script import Script

if TYPE_CHECKING:
    from motet.audit.verdicts import Audit
    from motet.spark.archive.proof import Proof
    from motet.spark.insight import Report


class Teller(Protocol):
    """Hears what happens, for whoever watches."""

    def act(self, title: str) -> None: ...

    def say(self, text: str) -> None: ...

    def progress(self, sample: Sample, total: int, remark: str) -> None: ...


@dataclass(frozen=True)
class Wish:
    """What the user asks for."""

    folder: Path
    log: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    cases: int = 1200
    seconds: float = 45.0
    seed: int = 7
    master: str = "local[2]"

    @property
    def history(self) -> Path:
        return self.folder.absolute() / "history"


@dataclass
class Outcome:
    """All that the story came to, to be judged and shown."""

    wish: Wish
    chronicle: Chronicle
    script: Script
    heard: Heard
    moves: HandOvers
    source: str
    silence_s: float = 0.0
    """The longest time without an event after the broker was killed."""
    archived: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    in_logs: int = 0
    """Events in the logs that Spark has read, those that the filter keeps away included."""
    batches: list[int] = field(default_factory=list)
    """Of the query that counts along, as Spark has written them down."""
    written: dict[str, list[object]] = field(default_factory=dict)
    """What Spark has written back, as its home's log has it: by transaction."""
    report: Report | None = None
    proof: Proof | None = None
    audit: Audit | None = None
    took_s: float = 0.0
