"""The demo keeps its promises, and would say so if it did not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from motet.demo import report
from motet.demo.account import Account
from motet.demo.report import Crash
from motet.model import Filter

NOTHING_LOST = Crash(resumed_s=0.0, lost_sessions=0, lost_routes=0, kept=0)


def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "motet", "demo", "--json", "--report", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    assert set(told) == {"results", "machine"}
    results = {result["name"]: result for result in told["results"]}
    for promise in (
        "lost",
        "doubled",
        "misrouted",
        "out of order",
        "refused, but delivered",
        "sessions lost with a killed broker",
        "routes lost with a killed broker",
    ):
        assert results[promise]["value"] == 0
        assert results[promise]["holds"] is True
    assert results["delivered"]["value"] > results["published"]["value"] > 0
    assert json.loads((tmp_path / "report.json").read_text())["results"] == told["results"]
    assert "misrouted" in (tmp_path / "report.txt").read_text()


def account() -> Account:
    made = Account()
    made.open("small", Filter.parse("id < 100"))
    for _ in range(4):
        made.post({"id": made.next_id(), "kind": "order"}, "shop")
    return made


def receive(made: Account, *numbers: int) -> Account:
    made._readers["small"].received.extend(numbers)
    return made


def test_the_account_finds_nothing_wrong_where_nothing_is() -> None:
    made = receive(account(), 1, 2, 3, 4)
    assert made.outstanding() == {}
    assert report.kept(report.promises(made.tally(), 1, 1, NOTHING_LOST))


def test_the_account_forgives_no_loss() -> None:
    tally = receive(account(), 1, 3).tally()
    assert tally.lost == 2
    assert not report.kept(report.promises(tally, 1, 1, NOTHING_LOST))


def test_the_account_finds_doubles_disorder_and_misrouting() -> None:
    tally = receive(account(), 1, 3, 2, 2, 4, 999).tally()
    assert (tally.doubled, tally.disordered, tally.misrouted) == (1, 2, 1)
    assert not report.kept(report.promises(tally, 1, 1, NOTHING_LOST))


def test_a_refused_event_must_reach_nobody() -> None:
    made = account()
    number = made.next_id()
    made.refuse({"id": number, "kind": "refund"})
    tally = receive(made, 1, 2, 3, 4, number).tally()
    assert (tally.refused, tally.refused_delivered) == (1, 1)
    assert not report.kept(report.promises(tally, 1, 1, NOTHING_LOST))


def test_a_subscription_that_was_not_effective_breaks_a_promise() -> None:
    tally = receive(account(), 1, 2, 3, 4).tally()
    assert not report.kept(report.promises(tally, 19, 20, NOTHING_LOST))


def test_what_a_killed_broker_may_not_take_breaks_a_promise() -> None:
    tally = receive(account(), 1, 2, 3, 4).tally()
    assert report.kept(report.promises(tally, 1, 1, NOTHING_LOST))
    for crash in (NOTHING_LOST._replace(lost_sessions=1), NOTHING_LOST._replace(lost_routes=1)):
        assert not report.kept(report.promises(tally, 1, 1, crash))
