"""Where reads begin and end, at brokers that are made up: what real ones do only now and then."""

from __future__ import annotations

from typing import Any

import pytest

from motet.client.logs.query import REST, LogOutline, LogStep
from motet.errors import EventsLost, MisuseError, UnavailableError
from motet.model.ids import NO_LIMIT
from motet.protocol.reading.messages import Outline
from motet.spark import planner as planner_module
from motet.spark.options import EARLIEST, LATEST, options_in
from motet.spark.planner import Account, Brokers, Planner

BOTH = ("A", "B")


class MadeUp(Brokers):
    """Two pubends. Whoever asks for accounts lets them grow."""

    def __init__(self) -> None:
        super().__init__((), 1.0)
        self.steps: dict[str, list[LogStep]] = {"A": [], "B": []}
        self.first = dict.fromkeys(BOTH, 1)
        self.gone = dict.fromkeys(BOTH, 0)
        self.later: list[tuple[str, LogStep]] = []
        self.asked = 0

    def describe(self) -> dict[str, Account]:
        self.asked += 1
        if self.later and self.asked > 2:
            name, step = self.later.pop(0)
            self.steps[name].append(step)
        return {
            name: Account("url", self.first[name], steps[-1].upto if steps else 0, self.gone[name])
            for name, steps in self.steps.items()
        }

    def outline(self, pubend: str, **options: Any) -> LogOutline:
        since, upto = options["since"], options["upto"]
        steps = [each for each in self.steps[pubend] if since <= each.upto <= upto]
        last = steps[-1].upto if steps else since - 1
        made = LogOutline(pubend)
        made.take(Outline(1, pubend, since, last, upto, False, tuple(steps)))
        return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "POLL_S", 0.001)
    monkeypatch.setattr(planner_module, "PATIENT_S", 0.01)


def planner(made: MadeUp, **options: str) -> Planner:
    return Planner(made, options_in({"brokers": "motet://x:1", "lagTimeout": "0.05", **options}))


def joint(upto: int, number: int) -> LogStep:
    return LogStep(upto, 1, 10, number, f"t{number}", BOTH)


def test_latest_waits_for_lagging_parts_of_a_transaction() -> None:
    made = MadeUp()
    made.steps["A"] = [LogStep(5, 5, 50), joint(8, 1)]
    made.later = [("B", joint(9, 1))]
    assert planner(made).at(LATEST) == {"A": 9, "B": 10}


def test_latest_names_the_pubend_that_lags_too_long() -> None:
    made = MadeUp()
    made.steps["A"] = [joint(8, 1)]
    with pytest.raises(UnavailableError, match="t1 is not yet at B"):
        planner(made).at(LATEST)


def test_a_stream_goes_on_elsewhere_while_one_lags_and_then_fails() -> None:
    made = MadeUp()
    made.steps["A"] = [LogStep(5, 5, 50), joint(8, 1), LogStep(20, 2, 20)]
    going = planner(made)
    at = going.onward({"A": 1, "B": 1}, 100, 1000, {})
    assert at == {"A": 6, "B": 1}

    def go_on() -> None:
        while True:
            assert going.onward(at, 100, 1000, {}) == at

    with pytest.raises(UnavailableError, match="t1 is not yet at B"):
        go_on()


def test_a_stream_waits_for_lagging_parts_of_a_transaction() -> None:
    made = MadeUp()
    made.steps["A"] = [joint(8, 1), LogStep(20, 2, 20)]
    made.later = [("B", joint(9, 1))]
    assert planner(made).onward({"A": 1, "B": 1}, 100, 1000, {}) == {"A": 21, "B": 10}


def test_the_planner_reads_nothing_beyond_the_bound() -> None:
    made = MadeUp()
    made.steps["A"] = [LogStep(5, 5, 50), LogStep(9, 5, 50)]
    made.steps["B"] = [LogStep(7, 5, 50)]
    going = planner(made)
    assert going.onward({"A": 1}, NO_LIMIT, NO_LIMIT, {"A": 6}) == {"A": 6}
    assert going.onward({"A": 6}, NO_LIMIT, NO_LIMIT, {"A": 6}) == {"A": 6}


def test_trimmed_events_are_an_error_unless_data_loss_is_accepted() -> None:
    made = MadeUp()
    made.first, made.gone = {"A": 7, "B": 1}, {"A": 1, "B": 0}
    made.steps["A"] = [LogStep(9, 2, 20)]
    made.steps["B"] = [LogStep(4, 4, 40), joint(8, 1), LogStep(11, 1, 10)]
    with pytest.raises(EventsLost, match="events of A are lost, from tick 3 to 6"):
        planner(made).onward({"A": 3, "B": 1}, 100, 1000, {})
    forgiving = planner(made, failOnDataLoss="false")
    assert forgiving.onward({"A": 3, "B": 1}, 100, 1000, {}) == {"A": 10, "B": 12}
    assert forgiving.at(EARLIEST) == {"A": 7, "B": 9}


def test_a_pubend_that_has_gone_is_an_error_or_stays_as_it_was() -> None:
    made = MadeUp()
    with pytest.raises(MisuseError, match="the checkpoint has pubend Z"):
        planner(made).onward({"A": 1, "B": 1, "Z": 5}, 100, 1000, {})
    forgiving = planner(made, failOnDataLoss="false")
    assert forgiving.onward({"A": 1, "B": 1, "Z": 5}, 9, 9, {}) == {"A": 1, "B": 1, "Z": 5}


def test_a_pubend_that_is_new_is_read_from_its_beginning() -> None:
    made = MadeUp()
    made.steps["B"] = [LogStep(4, 4, 40)]
    assert planner(made).onward({"A": 1}, 100, 1000, {}) == {"A": 1, "B": 5}


def test_a_pubend_that_is_new_and_shares_transactions_that_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner_module, "PATIENT_S", 0.01)
    made = MadeUp()
    made.steps["A"] = [LogStep(4, 2, 20, 1, "t1", BOTH)]
    made.steps["B"] = [LogStep(5, 2, 20, 1, "t1", BOTH), LogStep(7, 1, 10)]
    assert planner(made).onward({"A": 5}, 100, 1000, {}) == {"A": 5, "B": 8}


def test_a_log_that_begins_in_a_batch_of_a_sink() -> None:
    made = MadeUp()
    made.first["A"] = 3
    made.steps["A"] = [LogStep(5, 3, 30, REST), LogStep(9, 3, 30)]
    assert planner(made).at(EARLIEST) == {"A": 6, "B": 1}


# ── publishers that move ─────────────────────────────────────────────────────────────────


def test_a_batch_waits_for_the_events_from_before_a_move() -> None:
    """Given a log that was looked at before it had the publisher's last events there."""
    made = MadeUp()
    made.steps["B"] = [LogStep(4, 4, 40), LogStep(20, 2, 20, after=(("A", 15),))]
    made.later, made.asked = [("A", LogStep(15, 3, 30))], 1
    going = planner(made)
    assert going.onward({"A": 1, "B": 1}, 100, 1000, {}) == {"A": 1, "B": 5}
    assert going.onward({"A": 1, "B": 5}, 100, 1000, {}) == {"A": 16, "B": 21}


def test_latest_waits_for_the_events_from_before_a_move() -> None:
    made = MadeUp()
    made.steps["B"] = [LogStep(20, 2, 20, after=(("A", 15),))]
    made.later, made.asked = [("A", LogStep(15, 3, 30))], 1
    assert planner(made).at(LATEST) == {"A": 16, "B": 21}


def test_events_that_a_log_has_lost_are_not_waited_for() -> None:
    """A log whose end was destroyed grows again above it."""
    made = MadeUp()
    made.steps["A"] = [LogStep(9, 3, 30)]
    made.steps["B"] = [LogStep(20, 2, 20, after=(("A", 15),))]
    going = planner(made)
    assert going.onward({"A": 1, "B": 1}, 100, 1000, {}) == {"A": 10, "B": 21}
    made.steps["B"].append(LogStep(40, 1, 10, after=(("A", 35),)))
    made.steps["A"].append(LogStep(35, 1, 10))
    assert going.onward({"A": 10, "B": 21}, 1, 1000, {}) == {"A": 36, "B": 21}
    assert going.onward({"A": 36, "B": 21}, 1, 1000, {}) == {"A": 36, "B": 41}


def test_a_position_by_ticks_is_moved_before_what_it_would_swap() -> None:
    made = MadeUp()
    made.steps["A"] = [LogStep(9, 3, 30), LogStep(15, 3, 30)]
    made.steps["B"] = [LogStep(4, 4, 40), LogStep(20, 2, 20, after=(("A", 15),))]
    wanted = '{"A": 10, "B": 30}'
    going = planner(made, startingPosition=wanted)
    assert going.at(options_in({"brokers": "x", "startingPosition": wanted}).starting) == {
        "A": 10,
        "B": 5,
    }
