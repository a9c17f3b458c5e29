"""What `motet overlay restart --drain` prints of its report, and how it is called."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from motet.cli import console
from motet.cli.main import run
from motet.fleet.balance import BalanceReport
from motet.fleet.drain import DrainReport
from motet.fleet.restart import BrokerRestart, RestartReport

command = import_module("motet.cli.overlay")
ROWS = {name: {"broker": name, "pid": 70 + at} for at, name in enumerate(("B1", "B2", "B3"))}


def report(**more: object) -> RestartReport:
    first = DrainReport("B1", moved={"alice": "B2", "bob": "B2", "carol": "B3"})
    second = DrainReport("B2", stay={"dora": "she is in a transaction"})
    brokers = [
        BrokerRestart("B1", first, restarted=True, seconds=1.25),
        BrokerRestart("B2", second, restarted=True, seconds=60.0),
        BrokerRestart("B3", problem="it is a cell", restarted=True),
    ]
    return RestartReport(brokers, **more)  # type: ignore[arg-type]


def test_it_says_who_went_where_and_who_stayed_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    command._tell(report(), ROWS)
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert ["B1", "70", "3", "0", "1.2", "B2", "(2),", "B3", "(1)"] in lines
    assert ["B2", "71", "0", "1", "60.0", "–"] in lines
    assert ["B2", "dora", "she", "is", "in", "a", "transaction"] in lines
    assert "all links are up; `motet rebalance` evens out the clients" in out
    assert err == "B3 was not drained: it is a cell\n"


def test_it_says_how_even_the_brokers_are(capsys: pytest.CaptureFixture[str]) -> None:
    balance = BalanceReport(after={"B1": 2, "B2": 1}, moved={"alice": ("B2", "B1")})
    command._tell(report(balance=balance), ROWS)
    assert "1 client moved to even out: B1 2, B2 1" in capsys.readouterr().out


def test_after_an_interrupt_it_says_what_is_left() -> None:
    told = report(waiting=["B4"], interrupted=True)
    told.brokers[-1] = BrokerRestart("B3", DrainReport("B3"), still_draining=True)
    assert command._state_after(told) == (
        "restarted: B1, B2; not restarted: B3, B4; B3 is still draining, "
        "`motet drain B3 --undo` ends that"
    )
    rows = {name: dict(row) for name, row in ROWS.items()}
    shown = command.as_json(told, rows)
    assert shown["not_restarted"] == ["B3", "B4"]
    assert [row["restarted"] for row in shown["brokers"]] == [True, True, False]
    assert shown["brokers"][1]["stay"] == {"dora": "she is in a transaction"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--rebalance"], "error: --rebalance is for restarts that drain brokers"),
        (["--timeout", "5"], "error: --timeout is for restarts that drain brokers"),
        (["--drain"], "error: no overlay is running in"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    given: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run(["overlay", "restart", "--dir", str(tmp_path), *given])
    assert status == console.MISUSE
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith(problem)
    assert err[1].startswith("hint: ")
