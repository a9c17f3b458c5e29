"""Every promise of the demo can be broken, and then the demo says so and ends with status 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from motet.audit.verdicts import GUARANTEES, Finding
from motet.cli import demo_run
from motet.cli.console import FAILED, FINE
from motet.spark.archive.proof import Proof
from motet_labs.demo import promises
from motet_labs.demo.promises import (
    AUDIT,
    BACK,
    CRASH,
    EVENTS,
    HANDS,
    MOVE,
    SPARK,
    Promise,
    promises_of,
)
from motet_labs.demo.story import StoryOutcome, Teller, Wish
from tests.unit.labs.demo.example_outcome import arrived, outcome


def broken(told: StoryOutcome) -> set[tuple[str, str]]:
    return {(each.section, each.name) for each in promises_of(told) if each.kept is False}


def test_a_complete_outcome_keeps_every_promise(tmp_path: Path) -> None:
    told = outcome(tmp_path)
    assert broken(told) == set()
    assert promises.kept(promises_of(told))


def test_an_empty_list_of_promises_is_not_kept() -> None:
    assert not promises.kept([])
    assert not promises.kept([Promise("", "published", 3)])


def test_a_guarantee_without_checks_is_not_counted_as_kept(tmp_path: Path) -> None:
    told = outcome(tmp_path)
    assert told.audit is not None
    told.audit.checked["handover"] = 0
    said = {each.name: each.kept for each in promises_of(told) if each.section == AUDIT}
    assert said == {**dict.fromkeys(GUARANTEES, True), "handover": None}
    told.audit.extend([Finding("handover", "both sides", 1, [])])
    assert (AUDIT, "handover") in broken(told)


def lose(told: StoryOutcome) -> None:
    del told.heard.stretches[0].arrivals[0]


def double(told: StoryOutcome) -> None:
    came = told.heard.watched["watcher-1"]
    came.insert(1, came[0])


def misroute(told: StoryOutcome) -> None:
    one, other = told.heard.stretches[0], told.heard.stretches[-1]
    other.arrivals.insert(0, one.arrivals.pop(0))


def change(told: StoryOutcome) -> None:
    came = told.heard.watched["watcher-2"]
    came[0] = arrived(came[0].key, {**came[0].attributes, "n": 77})


def invert_publisher(told: StoryOutcome) -> None:
    came = told.heard.stretches[0].arrivals
    came.reverse()


def invert_watchers(told: StoryOutcome) -> None:
    """Of two publishers: each alone is in order."""
    came = told.heard.watched["watcher-1"]
    half = len(came) // 2
    came[:] = [*came[half:], *came[:half]]


def tear_hand_over(told: StoryOutcome) -> None:
    """The old handler has got an event behind the first one of the new handler."""
    old, new = told.heard.stretches[0].arrivals, told.heard.stretches[1].arrivals
    old.append(new.pop())


def tear_plan(told: StoryOutcome) -> None:
    del told.heard.moved[-1]


def lose_plan(told: StoryOutcome) -> None:
    told.heard.moved.clear()


def interrupt_plan(told: StoryOutcome) -> None:
    told.heard.moved.insert(1, arrived(("ben", 1), {"moved": "lot-01"}, tx="another"))


def stay(told: StoryOutcome) -> None:
    told.move = None


def miss(told: StoryOutcome) -> None:
    """Of the middle of what the agent has handled."""
    del told.heard.stretches[1].arrivals[1]


def handle_twice(told: StoryOutcome) -> None:
    came = told.heard.stretches[1].arrivals
    came.insert(1, came[0])


def handle_backwards(told: StoryOutcome) -> None:
    told.heard.stretches[1].arrivals.reverse()


def lose_session(told: StoryOutcome) -> None:
    told.heard.lost_sessions = 1


def archive_less(told: StoryOutcome) -> None:
    del told.archived[0]


def archive_twice(told: StoryOutcome) -> None:
    told.archived.append(told.archived[0])


def archive_foreign(told: StoryOutcome) -> None:
    told.archived.append(("sensor", 1, {"site": "B1"}))


def archive_changed(told: StoryOutcome) -> None:
    publisher, number, event = told.archived[0]
    told.archived[0] = (publisher, number, {**event, "step": "leap"})


def disagree(told: StoryOutcome) -> None:
    told.proof = Proof(1, (), {"missing": 2}, ())


def prove_nothing(told: StoryOutcome) -> None:
    told.proof = None


def lose_result(told: StoryOutcome) -> None:
    told.written["insight/query/1"] = [6]


def tear_result(told: StoryOutcome) -> None:
    told.written = {tx: [*ticks, 6] for tx, ticks in told.written.items()}


def lose_batch(told: StoryOutcome) -> None:
    told.batches.append(1)


def miscount(told: StoryOutcome) -> None:
    told.heard.insight[0] = arrived(
        ("insight", 1), {"insight": "running", "events": 7}, tx="insight/query/0", tick=5
    )


def find_something(told: StoryOutcome) -> None:
    assert told.audit is not None
    told.audit.extend([Finding("exactly-once", "lost", 1, ["event p0 #1 never came"])])


def judge_nothing(told: StoryOutcome) -> None:
    told.audit = None


def judge_emptiness(told: StoryOutcome) -> None:
    assert told.audit is not None
    told.audit.checked.clear()


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lose, (EVENTS, "lost")),
        (double, (EVENTS, "doubled")),
        (misroute, (EVENTS, "misrouted")),
        (change, (EVENTS, "changed")),
        (invert_publisher, (EVENTS, "inverted")),
        (invert_watchers, (EVENTS, "inverted")),
        (tear_hand_over, (EVENTS, "torn")),
        (tear_plan, (HANDS, "torn")),
        (lose_plan, (HANDS, "lost")),
        (interrupt_plan, (HANDS, "torn")),
        (stay, (MOVE, "moved")),
        (miss, (MOVE, "missed")),
        (handle_twice, (MOVE, "doubled")),
        (handle_backwards, (MOVE, "inverted")),
        (lose_session, (CRASH, "sessions lost")),
        (archive_less, (SPARK, "lost")),
        (archive_twice, (SPARK, "doubled")),
        (archive_foreign, (SPARK, "misrouted")),
        (archive_changed, (SPARK, "changed")),
        (disagree, (SPARK, "archive and logs differ")),
        (prove_nothing, (SPARK, "archive and logs differ")),
        (lose_result, (BACK, "lost")),
        (tear_result, (BACK, "torn")),
        (lose_batch, (BACK, "batches not published once")),
        (miscount, (BACK, "events counted by the last result")),
        (find_something, (AUDIT, "exactly-once")),
        (judge_nothing, (AUDIT, "audit completed")),
        (judge_emptiness, (AUDIT, "audit completed")),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_each_spoilt_outcome_breaks_its_promise(
    spoil: Callable[[StoryOutcome], None], expected: tuple[str, str], tmp_path: Path
) -> None:
    told = outcome(tmp_path)
    spoil(told)
    assert expected in broken(told)


@pytest.mark.parametrize(
    ("spoil", "status"), [(None, FINE), (lose, FAILED), (find_something, FAILED)]
)
def test_the_exit_status_says_whether_all_were_kept(
    spoil: Callable[[StoryOutcome], None] | None,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def play(wish: Wish, _: Teller) -> StoryOutcome:
        told = outcome(wish.folder)
        if spoil is not None:
            spoil(told)
        return told

    monkeypatch.setattr(demo_run, "play", play)
    monkeypatch.setattr(demo_run, "check_machine", lambda: None)
    folder = tmp_path / "report"
    assert demo_run.demo(None, [], 1, 5.0, 7, folder, "local[1]", True) == status
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] is (status == FINE)
    assert json.loads((folder / "report.json").read_text()) == told
    page = (folder / "report.html").read_text()
    assert ("Every promise was kept" in page) is (status == FINE)
    assert ("event p0 #1 never came" in page) is (spoil is find_something)
    assert "a log of &lt;nobody&gt;" in page
    assert "<nobody>" not in page
    assert "Agent “anna” moved from B4 to B2" in page
    assert page.count('src="data:image/png;base64,') == 3
    assert "http" not in page
