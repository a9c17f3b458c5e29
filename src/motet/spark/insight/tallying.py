"""The table of steps, kept up to date visit by visit: it says what `report.steps` says of all
visits at once. No Spark: what a batch of a stream has written is read, and nothing else.

Of each visit it keeps its times, in order, and a mark of its case: 32 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy
import pyarrow.parquet
from pandas.util import hash_array

from motet.spark.insight.report import SHARES, TIMES

COLUMNS: Final = ("process", "step", "case", "agent", *TIMES)


class Tally:
    """Of all visits that were added."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], _Step] = {}

    def add(self, visits: pyarrow.Table) -> None:
        frame = visits.select(COLUMNS).to_pandas()
        for key, rows in frame.groupby(["process", "step"], sort=False):
            self._steps.setdefault(key, _Step()).add(rows)

    def rows(self) -> list[dict[str, Any]]:
        """As `report.steps` has them, in its order."""
        found = [
            {"process": process, "step": step, **each.told()}
            for (process, step), each in self._steps.items()
        ]
        return sorted(found, key=lambda row: (row["process"], -row["visits"], row["step"]))


class _Step:
    def __init__(self) -> None:
        self._visits = 0
        self._cases = numpy.empty(0, numpy.uint64)
        self._agents: set[str] = set()
        self._times = {name: numpy.empty(0) for name in TIMES}

    def add(self, rows: Any) -> None:
        self._visits += len(rows)
        marks = numpy.unique(hash_array(rows["case"].to_numpy(object), categorize=False))
        self._cases = _merged(self._cases, marks[~_among(marks, self._cases)])
        self._agents.update(rows["agent"].dropna())
        for name in TIMES:
            known = rows[name].dropna().to_numpy(float)
            self._times[name] = _merged(self._times[name], numpy.sort(known))

    def told(self) -> dict[str, Any]:
        counts = {"visits": self._visits, "cases": len(self._cases), "agents": len(self._agents)}
        shares = {
            f"{name.removesuffix('_s')}_p{round(share * 100)}_s": _at(times, share)
            for name, times in self._times.items()
            for share in SHARES
        }
        return counts | shares


def _merged(there: Any, new: Any) -> Any:
    """Both in order, and so is what comes of it."""
    return numpy.insert(there, numpy.searchsorted(there, new), new) if len(new) else there


def _among(some: Any, there: Any) -> Any:
    at = numpy.searchsorted(there, some)
    found = numpy.zeros(len(some), bool)
    within = at < len(there)
    found[within] = there[at[within]] == some[within]
    return found


def _at(times: Any, share: float) -> float | None:
    """The smallest of them that is not below such a share, as Spark has it."""
    return float(times[math.ceil(share * len(times)) - 1]) if len(times) else None


class Batches:
    """A tally of the visits that the batches of a stream have left in a folder. Each is read once:
    those of earlier runs at the beginning."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tally = Tally()
        self._last: int | None = None

    def upto(self, batch: int) -> list[dict[str, Any]]:
        """With this batch, which has just been written."""
        if self._last is None or batch != self._last + 1:
            self._tally = Tally()
            self._add(each for each in self._there() if each < batch)
        self._add([batch])
        self._last = batch
        return self._tally.rows()

    def _there(self) -> list[int]:
        names = (each.name.removeprefix("batch=") for each in self._folder.glob("batch=*"))
        return sorted(int(name) for name in names if name.isdigit())

    def _add(self, batches: Iterable[int]) -> None:
        for batch in batches:
            for file in sorted((self._folder / f"batch={batch}").glob("*.parquet")):
                with pyarrow.parquet.ParquetFile(file) as visits:
                    self._tally.add(visits.read(list(COLUMNS)))
