"""The promises of the story, counted: who says so, and whether each was kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.table import Table
from rich.text import Text

from motet.audit.verdicts import GUARANTEES, Audit
from motet.demo.comparing import Tally

BROKEN: Final = {
    "lost": "never came, though owed",
    "doubled": "came more than once",
    "misrouted": "came to somebody who did not ask for it",
    "changed": "came with other attributes",
    "inverted": "came in another order than published, or than somebody else saw",
    "torn": "came in part, or to both sides of a hand-over",
}


@dataclass(frozen=True)
class Promise:
    """A count. With a goal it is a promise; without, it says how much was put to the test."""

    section: str
    name: str
    count: float
    goal: float | None = None
    sense: Literal["=", "at least", "at most"] = "="
    unit: str = ""
    remark: str = ""

    @property
    def kept(self) -> bool | None:
        if self.goal is None:
            return None
        if self.sense == "=":
            return self.count == self.goal
        return self.count >= self.goal if self.sense == "at least" else self.count <= self.goal

    def to_json(self) -> dict[str, Any]:
        return {
            "section": self.section,
            "name": self.name,
            "count": self.count,
            "goal": self.goal,
            "sense": self.sense,
            "unit": self.unit,
            "kept": self.kept,
            "remark": self.remark,
        }


def counted(section: str, tally: Tally, names: Iterable[str], unit: str) -> list[Promise]:
    """Nothing of these may have happened."""
    return [
        Promise(section, name, getattr(tally, name), 0.0, unit=unit, remark=BROKEN[name])
        for name in names
    ]


def of_audit(found: Audit | None) -> list[Promise]:
    """Of every guarantee, how often it was put to the test and how often it was broken."""
    section = "the audit of everything"
    if found is None or not (found.findings or any(found.checked.values())):
        return [Promise(section, "was made", 0, 1)]
    said = []
    for name, meaning in GUARANTEES.items():
        checked, broken = found.checked.get(name, 0), found.violations(name)
        remark = f"{meaning}; {f'{checked:,}' if checked else 'nothing was'} checked"
        goal = 0.0 if checked or broken else None  # what was not put to the test was not kept
        said.append(Promise(section, name, broken, goal, remark=remark))
    return said


def kept(promises: Sequence[Promise]) -> bool:
    """All of them; and there must be some."""
    judged = [each.kept for each in promises if each.kept is not None]
    return bool(judged) and all(judged)


def table(promises: Sequence[Promise]) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("promise", no_wrap=True)
    shown.add_column("count", justify="right", no_wrap=True)
    shown.add_column("goal", justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    shown.add_column("", style="dim")
    section = ""
    for each in promises:
        if each.section != section:
            section = each.section
            shown.add_row(Text(section, style="bold"))
        shown.add_row(f"  {each.name}", number(each), goal(each), VERDICTS[each.kept], each.remark)
    return shown


VERDICTS: Final = {
    True: Text("kept", style="green"),
    False: Text("BROKEN", style="bold red"),
    None: Text(""),
}


def number(each: Promise) -> str:
    value = f"{each.count:,.1f}" if each.count % 1 else f"{each.count:,.0f}"
    return f"{value} {each.unit}".rstrip()


def goal(each: Promise) -> str:
    if each.goal is None:
        return ""
    sign = {"=": "", "at least": "≥ ", "at most": "≤ "}[each.sense]
    return f"{sign}{each.goal:,.0f}"
