"""What `motet drain` and `motet rebalance` print, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace

from motet.cli import console
from motet.cli.main import run
from motet.errors import UnavailableError
from motet.fleet.balance import BalanceReport
from motet.fleet.drain import DrainReport

drain, rebalance = import_module("motet.cli.drain"), import_module("motet.cli.rebalance")
B3 = "motet://127.0.0.1:1"
STAYS = DrainReport(
    "B3",
    begun=True,
    moved={"alice": "B1", "bob": "B2", "carol": "B1"},
    away=["bob"],
    stay={"dora": "she is in a transaction"},
    left=1,
    in_transit=["emil"],
    log_owed=True,
    owed_towards=["B2"],
    moves_s=1.5,
)
EMPTY = DrainReport("B3", begun=True, was_draining=True, moved={"alice": "B1"}, moves_s=0.5)
UNEVEN = BalanceReport(
    before={"B1": 20, "B2": 0},
    after={"B1": 19, "B2": 1},
    planned={("B1", "B2"): 10},
    left_out={"B3": "it drains"},
    moved={"alice": ("B1", "B2")},
    stay={"dora": "she is in a transaction"},
    moves_s=0.5,
)


def finds(report: Any, failure: BaseException | None = None) -> Callable[..., Any]:
    """Takes the place of a long operation."""

    class Work:
        def __init__(self, *_: object) -> None:
            self.report = report

        async def run(self) -> Any:
            if failure is not None:
                raise failure
            return report

        plan = run

        def stop(self) -> None: ...

    return Work


Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command, whose work ends with this report or failure."""

    def call(words: str, report: Any, failure: BaseException | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(drain, "Drain", finds(report, failure))
        monkeypatch.setattr(rebalance, "Balance", finds(report, failure))
        name, *options = words.split()
        place = [B3, "B3"] if name == "drain" else [B3]
        status = run([name, *place, *options])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_it_names_who_could_not_go_and_why(told: Told) -> None:
    status, out, err = told("drain", STAYS)
    assert status == console.FAILED
    assert "3 clients moved in 1.5 s: 2 to B1, 1 to B2" in out
    assert "1 of them not connected: B3 sends them on when they come" in out
    assert ["dora", "she", "is", "in", "a", "transaction"] in [s.split() for s in out.splitlines()]
    problem, hint = err.splitlines()
    assert problem == (
        "error: B3 is not empty: 1 client left; 1 client on the way; "
        "events of its log not acknowledged yet (towards B2)"
    )
    assert hint == (
        "hint: it goes on draining: run the same command again to go on, or `motet drain B3 --undo`"
    )


def test_it_names_a_few_of_many(told: Told) -> None:
    stay = {f"c{n}": "full" for n in range(drain.SHOWN + 5)}
    _, out, _ = told("drain", replace(STAYS, stay=stay))
    assert out.count("full") == drain.SHOWN
    assert "… and 5 more; --json lists all" in out
    _, out, _ = told("drain --json", replace(STAYS, stay=stay))
    assert json.loads(out)["stay"] == stay


def test_an_empty_broker(told: Told) -> None:
    status, out, err = told("drain", EMPTY)
    assert (status, err) == (console.FINE, "")
    assert "B3 was draining already" in out
    assert "B3 is empty, and its log is owed to nobody; `motet drain B3 --undo`" in out
    status, out, _ = told("drain --json", EMPTY)
    shown = json.loads(out)
    assert status == console.FINE
    assert (shown["empty"], shown["was_draining"], shown["clients_per_s"]) == (True, True, 2.0)


@pytest.mark.parametrize(
    ("begun", "left"),
    [
        (True, "3 clients moved, 1 left at B3; it goes on draining"),
        (False, "interrupted before anything was changed at B3"),
    ],
)
def test_an_interrupt_tells_what_it_leaves(told: Told, begun: bool, left: str) -> None:
    status, _, err = told("drain", replace(STAYS, begun=begun), KeyboardInterrupt())
    assert status == console.INTERRUPTED
    assert left in err


def test_a_failure_tells_what_it_leaves(told: Told) -> None:
    status, _, err = told("drain", STAYS, UnavailableError("B3 is gone"))
    assert status == console.FAILED
    assert "error: B3 is gone" in err
    assert "3 clients moved, 1 left at B3" in err
    _, _, err = told("drain", replace(STAYS, begun=False), UnavailableError("B3 is gone"))
    assert "moved" not in err


def test_undo_moves_nobody(told: Told) -> None:
    status, _, err = told("drain --undo --to B1", STAYS)
    assert status == console.MISUSE
    assert "error: --undo moves nobody" in err


def test_a_plan_is_shown(told: Told) -> None:
    status, out, err = told("rebalance --dry-run", UNEVEN)
    assert status == console.FINE
    assert ["B1", "B2", "10"] in [line.split() for line in out.splitlines()]
    assert "now: B1 20, B2 0" in out
    assert "moved" not in out
    assert err == "B3 is left out: it drains\n"


def test_brokers_that_do_not_become_even(told: Told) -> None:
    status, out, err = told("rebalance", UNEVEN)
    assert status == console.FAILED
    assert "1 client moved in 0.5 s" in out
    assert "after:  B1 19, B2 1" in out
    assert "dora" in out
    assert "not all brokers have 9 to 11 clients: B1 (19), B2 (1)" in err
    assert "hint: run the same command again to go on" in err


def test_an_interrupted_rebalance_tells_what_it_leaves(told: Told) -> None:
    status, _, err = told("rebalance", UNEVEN, KeyboardInterrupt())
    assert status == console.INTERRUPTED
    assert "1 client moved, and some may still move; the same command goes on" in err
