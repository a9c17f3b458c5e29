"""`make house`: the figures that say whether the structure of Motet is sound, beside their goals.

    python -m tools.house [--json] [--no-walks] [--beside SRC]

Each row has the value of this tree, that of commit f894ba4, from which the rebuilding began, and
the goal. `tools/walks.py` says how walks are counted, `tools/source.py` what a class and a room
are, `tools/new_protocol.py` what a new protocol touches. Exceptions do not count as inheritance:
they form a tree by whose fault something is.

Times depend on the machine: `--beside SRC` measures them for another tree as well, in turns, and
takes those as goals.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools import new_protocol
from tools.source import LABS, ROOT, Source

RUNS = 5
IMPORT = "import time; a = time.process_time(); import motet; print(time.process_time() - a)"
HELP = (
    "import resource as r, subprocess as s, sys;"
    "s.run([sys.executable, '-m', 'motet', '--help'], stdout=s.DEVNULL, check=True);"
    "u = r.getrusage(r.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime)"
)


class Row(NamedTuple):
    what: str
    value: float | None
    before: float
    """At f894ba4."""
    goal: float | None
    """The largest value that is good enough."""
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.value is None or self.goal is None else self.value <= self.goal


def static_rows(source: Source) -> list[Row]:
    plain = [name for name in source.classes if not source.is_error(name)]
    deepest = max(plain, key=source.depth)
    largest = max(plain, key=lambda name: len(source.methods(name)))
    widest = max(plain, key=lambda name: len(source.public_methods(name)))
    touched = len(new_protocol.touched())
    total, labs = sum(source.lines.values()), source.lines["labs"]
    return [
        Row("existing files that a new protocol touches", touched, 21, 6, "tools/new_protocol.py"),
        Row("files that name BrokerCore", len(source.files_with("BrokerCore")), 27, 6),
        Row("deepest inheritance of own classes", source.depth(deepest), 10, 2, deepest),
        Row("methods of the largest class", len(source.methods(largest)), 139, None, largest),
        Row("public methods of a class", len(source.public_methods(widest)), 37, 25, widest),
        Row("class names defined more than once", len(source.defined_twice), 96, 19),
        Row("lines in src", total - labs, 82_616, 75_999, "with the labs at f894ba4"),
        Row("lines in labs", labs, 10_454, None, "in src at f894ba4"),
    ]


WALKED = {
    "best effort": {"calls": 243, "functions": 111, "files": 37, "rooms": 7, "room changes": 75},
    "exactly once": {"calls": 560, "functions": 246, "files": 71, "rooms": 9, "room changes": 176},
    "subscribe": {"calls": 1255, "functions": 350, "files": 86, "rooms": 10, "room changes": 436},
    "D-TX": {"calls": 6491, "functions": 548, "files": 100, "rooms": 11, "room changes": 2540},
}
FILES_GOAL = {"best effort": 25, "exactly once": 45, "subscribe": 50, "D-TX": 60}


def walk_rows() -> list[Row]:
    rows = []
    for line in _run(["-m", "tools.walks"]).splitlines():
        found: dict[str, Any] = json.loads(line)
        walk = found.pop("walk")
        for what, value in found.items():
            before = WALKED[walk][what]
            goals = {"files": FILES_GOAL[walk], "room changes": before // 2}
            rows.append(Row(f"{walk}: {what}", value, before, goals.get(what)))
    return rows


def start_rows(beside: Path | None) -> list[Row]:
    rows = []
    for what, program, before in (
        ("import of motet, CPU s", IMPORT, 0.30),
        ("motet --help, CPU s", HELP, 0.84),
    ):
        here, there = _fastest(program, beside)
        before = before if there is None else there
        rows.append(Row(what, here, before, before))
    return rows


def _fastest(program: str, beside: Path | None) -> tuple[float, float | None]:
    """The least of several runs: what it takes, without what others on the machine add."""
    here, there = [], []
    for _ in range(RUNS):
        here.append(float(_run(["-c", program])))
        if beside is not None:
            there.append(float(_run(["-c", program], beside)))
    return round(min(here), 2), round(min(there), 2) if there else None


def _run(words: Sequence[str], source: Path = ROOT / "src") -> str:
    path = os.pathsep.join(map(str, (source, ROOT, LABS.parent)))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


# ── showing ──────────────────────────────────────────────────────────────────────────────


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if float(value).is_integer() else f"{value:.2f}"


def show(rows: Sequence[Row]) -> None:
    lines = [("what", "now", "f894ba4", "goal", "met", "")]
    for row in rows:
        goal = "" if row.goal is None else f"≤ {_number(row.goal)}"
        met = {True: "yes", False: "no", None: ""}[row.met]
        lines.append((row.what, _number(row.value), _number(row.before), goal, met, row.note))
    _aligned(lines)


def show_lines(source: Source) -> None:
    total = sum(source.lines.values())
    by_size = sorted(source.lines.items(), key=lambda item: -item[1])
    print()
    _aligned(
        [
            ("room", "lines", "share"),
            *((room, f"{n:,}", f"{100 * n / total:.0f} %") for room, n in by_size),
        ]
    )


def _aligned(lines: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numbers = range(1, len(widths) - 2) if len(widths) > 3 else range(1, len(widths))
    for line in lines:
        cells = [
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="tools.house", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-walks", action="store_true", help="only what needs no run")
    parser.add_argument("--beside", type=Path, metavar="SRC", help="compare times with this tree")
    asked = parser.parse_args(words)
    source = Source()
    parts: list[Callable[[], list[Row]]] = [lambda: static_rows(source)]
    if not asked.no_walks:
        parts += [walk_rows, lambda: start_rows(asked.beside)]
    rows = [row for part in parts for row in part()]
    if asked.json:
        told = [row._asdict() | {"met": row.met} for row in rows]
        print(json.dumps({"rows": told, "lines": source.lines}, indent=1))
        return
    show(rows)
    show_lines(source)


if __name__ == "__main__":
    main()
