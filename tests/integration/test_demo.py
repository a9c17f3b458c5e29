"""The demo with real brokers, one of them killed, and without Spark: whoever subscribes gets what
is owed. What Spark has to do in it is tested in `tests/spark`, and all of it by `make soak`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from motet.audit.verdicts import Audit
from motet.runtime.loop import run
from motet.spark.archive.proof import Proof
from motet.spark.insight.report import InsightReport
from motet.spark.replay.plan import PlanOrigin, ReplayPlan, noted
from motet_labs.demo import story
from motet_labs.demo.overlay import PUBLISHED_AT
from motet_labs.demo.pipeline import Pipeline
from motet_labs.demo.promises import CRASH, EVENTS, HANDS, MOVE, promises_of
from motet_labs.demo.story import Sample, Wish, play

CASES, EVENTS_OF_CASE = 24, 40
SECONDS = 6.0


class NoSpark(Pipeline):
    """A log of its own, and nothing done with it."""

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def make_log(self, cases: int, seed: int) -> Path:
        del cases, seed
        folder = self.folder / "plan"
        folder.mkdir()
        rows = [
            {
                "_publisher": case % len(PUBLISHED_AT),
                "_time_us": number,
                "case": f"c{case:02}",
                "step": f"s{number}",
                "transition": "suspend",  # Spark would not count it, so nobody waits for that
            }
            for number in range(EVENTS_OF_CASE)
            for case in range(CASES)
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "0.parquet")
        return folder

    def plan(self, log: Path, publishers: int, names: Mapping[str, str]) -> ReplayPlan:
        assert not names
        rows = CASES * EVENTS_OF_CASE
        plan = noted(log, PlanOrigin("nowhere", (), (), ""), publishers, "log", (), rows)
        assert plan is not None
        assert plan.rows == rows
        return plan

    def begin(self, brokers: Sequence[str], home: str) -> None:
        assert len(brokers) == len(PUBLISHED_AT)
        assert home not in brokers

    @property
    def archived(self) -> int:
        return CASES * EVENTS_OF_CASE

    @property
    def is_warm(self) -> bool:
        return True

    def end(self) -> list[int]:
        return []

    def archived_events(self) -> list[tuple[str, int, dict[str, Any]]]:
        return []

    def insight(self, home: str) -> tuple[InsightReport, int]:
        del home
        return InsightReport(0, 0, [], [], [], [], 0, 0, 0), 0

    def written(self, home: str) -> dict[str, list[object]]:
        del home
        return {}

    def prove(self, brokers: Sequence[str]) -> Proof:
        del brokers
        return Proof(1, (), {}, ())

    def audit(self, history: Path, tell: object) -> Audit:
        del tell
        assert all(any((history / name).iterdir()) for name in ("logged", "deliveries", "events"))
        return Audit()


class Silence:
    def act(self, title: str) -> None: ...

    def say(self, text: str) -> None: ...

    def progress(self, sample: Sample, total: int, remark: str) -> None: ...


def test_cases_change_hands_while_an_agent_moves_and_the_broker_in_the_middle_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story, "Pipeline", NoSpark)
    told = run(play(Wish(tmp_path / "demo", seconds=SECONDS), Silence()))
    found = [each for each in promises_of(told) if each.section in (EVENTS, HANDS, MOVE, CRASH)]
    assert [each for each in found if each.kept is False] == []
    counts = {(each.section, each.name): each.count for each in found}
    assert counts[EVENTS, "published"] == CASES * EVENTS_OF_CASE
    assert counts[EVENTS, "delivered"] == 3 * CASES * EVENTS_OF_CASE
    assert counts[HANDS, "lots that changed hands"] > 0
    assert counts[MOVE, "moved"] == 1
    assert counts[MOVE, "events handled at B4"] > 0
    assert told.timeline.killed_at_s is not None
    assert told.silence_s > 0
    assert told.in_logs > len(told.script)
