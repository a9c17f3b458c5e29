"""Benchmarks of this tree and of an earlier one, in turns.

    python -m tools.compare BEFORE WHAT… [--rounds 3] [--size short] [--json]

BEFORE is a commit, which is checked out and built in a temporary folder, or the folder of a tree
that is built already. WHAT is one or more of the benchmarks of `motet bench`. Machines are shared
and noisy, so both trees run in turns, the earlier one first in every other round. A figure is the
median of its rounds; its ratio is the median of the ratios of the single rounds. Figures are
matched by name; those that only one tree has are listed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tools.source import ROOT

TOLERANCE = 0.03
"""A figure that is worse by no more than this is as good as before."""
LESS_IS_BETTER = ("µs", "ms", "s", "%", "B", "KiB", "MiB", "GiB")
SIDES = ("before", "after")


class Comparison(NamedTuple):
    name: str
    unit: str
    before: float
    after: float
    ratio: float
    """After by before: the median of the rounds."""
    least: float
    most: float

    @property
    def better_by(self) -> float | None:
        """Negative if it is worse; None if the unit does not say which direction is better."""
        if self.unit.endswith("/s"):
            return self.ratio - 1
        return 1 - self.ratio if self.unit in LESS_IS_BETTER else None

    @property
    def verdict(self) -> str:
        if self.better_by is None:
            return ""
        if self.better_by < -TOLERANCE:
            return "worse"
        return "better" if self.better_by > TOLERANCE else "same"


class Comparisons(NamedTuple):
    compared: list[Comparison]
    alone: dict[str, list[str]]
    """By side: figures that the other side does not have."""


@contextmanager
def tree_of(before: str) -> Iterator[Path]:
    """The folder of a built tree."""
    if (Path(before) / "src" / "motet").is_dir():
        yield Path(before).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="motet-before-") as folder:
        tree = Path(folder) / "tree"
        _run("git", "worktree", "add", "--quiet", "--detach", str(tree), before, cwd=ROOT)
        try:
            _run(sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", cwd=tree)
            yield tree
        finally:
            _run("git", "worktree", "remove", "--force", str(tree), cwd=ROOT)


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")


def measured(tree: Path, what: str, size: str) -> list[Mapping[str, Any]]:
    """The figures of one run of `motet bench`."""
    paths = os.pathsep.join(map(str, (tree / "src", tree / "labs")))
    options = [] if size == "long" else [f"--{size}"]
    command = [sys.executable, "-m", "motet", "bench", what, *options, "--json"]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    try:
        results: list[Mapping[str, Any]] = json.loads(done.stdout)["results"]
    except (ValueError, KeyError):
        raise SystemExit(
            f"`motet bench {what}` printed no figures in {tree}:\n{done.stderr.strip()[-2000:]}"
        ) from None
    return results


def compared(rounds: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]) -> Comparisons:
    """From one or more rounds: by side, the figures of one run."""
    values: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in SIDES}
    units = {}
    for each in rounds:
        for side in SIDES:
            for figure in each[side]:
                values[side][figure["name"]].append(figure["value"])
                units[figure["name"]] = figure["unit"]
    before, after = (values[side] for side in SIDES)
    found = []
    for name in after:
        if name in before:
            ratios = [
                new / old for old, new in zip(before[name], after[name], strict=False) if old
            ] or [1.0]
            found.append(
                Comparison(
                    name, units[name], median(before[name]), median(after[name]),
                    median(ratios), min(ratios), max(ratios),
                )
            )  # fmt: skip
    alone = {
        side: [name for name in mine if name not in other]
        for side, mine, other in (("before", before, after), ("after", after, before))
    }
    return Comparisons(found, alone)


def compare(before: str, what: str, rounds: int, size: str) -> Comparisons:
    with tree_of(before) as tree:
        trees = dict(zip(SIDES, (tree, ROOT), strict=True))
        found = []
        for number in range(rounds):
            figures = {}
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                print(f"{what}: round {number + 1} of {rounds}, {side}", file=sys.stderr)
                figures[side] = measured(trees[side], what, size)
            found.append(figures)
    return compared(found)


def as_table(what: str, found: Comparisons) -> Table:
    table = Table(title=f"motet bench {what}", title_justify="left", caption_justify="left")
    table.add_column("figure", overflow="fold")
    for heading in ("before", "after", "unit", "ratio", "rounds", ""):
        table.add_column(heading, justify="left" if heading in ("unit", "") else "right")
    for each in found.compared:
        span = f"{each.least:.2f}-{each.most:.2f}"
        values = (f"{each.before:,.4g}", f"{each.after:,.4g}", each.unit, f"{each.ratio:.3f}")
        table.add_row(each.name, *values, span, each.verdict)
    missing = [f"only {side}: {name}" for side, names in found.alone.items() for name in names]
    table.caption = "\n".join(missing) or None
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("tools.compare", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", help="a commit, or the folder of a built tree")
    parser.add_argument("what", nargs="+", help="benchmarks, as in `motet bench WHAT`")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each tree (default: 3)")
    parser.add_argument(
        "--size", choices=("least", "short", "long"), default="short", help="(default: short)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 1:
        parser.error("--rounds: at least one round is needed")
    found = {what: compare(chosen.before, what, chosen.rounds, chosen.size) for what in chosen.what}
    if chosen.json:
        told = {
            what: {
                "figures": [each._asdict() | {"verdict": each.verdict} for each in it.compared],
                "alone": it.alone,
            }
            for what, it in found.items()
        }
        print(json.dumps(told))
    else:
        for what, it in found.items():
            Console(width=None if sys.stdout.isatty() else 130).print(as_table(what, it))
    return 0


if __name__ == "__main__":
    sys.exit(main())
