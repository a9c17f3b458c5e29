"""Every benchmark runs, with the least effort, so that none can break unnoticed."""

from __future__ import annotations

import json
import math

import pytest

from motet.cli.bench import MODULES, What
from motet.cli.console import FAILED, FINE
from motet.cli.main import run
from motet_labs.bench import load
from motet_labs.figures import Figure, Progress, Size
from motet_labs.processes import hear_from

WITHOUT_SPARK = [what for what in What if what not in (What.ALL, What.SPARK, What.AUDIT)]


@pytest.mark.parametrize("what", WITHOUT_SPARK)
def test_each_benchmark_runs_and_reports_finite_figures(
    what: What, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", what, "--least", "--json"]) == FINE
    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["cores"] >= 1
    assert len(told["results"]) >= 3
    for figure in told["results"]:
        assert figure["name"]
        assert math.isfinite(figure["value"]), figure
        assert figure["floor"] is None or math.isfinite(figure["floor"]), figure
    values = {figure["name"]: figure["value"] for figure in told["results"]}
    assert values | EXACT.get(what, {}) == values


EXACT = {
    What.ROUTE: {"events lost, doubled or out of order": 0},
    What.JOURNAL: {
        "group commits for one operation, one broker": 1,
        # There, at the far end, and for the echo: every broker but the last writes twice.
        "group commits for one operation, line of 3": 5,
    },
    What.DELIVERY: {
        "group commits for one event at low rate": 1,
        "events lost, doubled or out of order": 0,
    },
    What.MOBILITY: {
        "control messages per hop of a subscriber's move, beside 10 subscriptions": 2,
        "control messages per hop of a subscriber's move, beside 20 subscriptions": 2,
        "moves that failed": 0,
        "clients that stayed, or lost their sessions": 0,
    },
}
"""Figures that do not depend on the machine."""


def test_all_benchmarks_are_one_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make bench`, with figures that nobody has measured: each benchmark runs above."""
    ran: list[tuple[str, Size]] = []
    lossy = ""

    def stub(module: str) -> None:
        def measure(size: Size, progress: Progress) -> list[Figure]:
            progress("measuring")
            ran.append((module, size))
            name = f"figure of {module}"
            return [Figure(name, 1234.5, "events/s", 2469.0, 1e6, counts=module != lossy)]

        monkeypatch.setattr(f"motet_labs.bench.{module}.run", measure)

    modules = list(MODULES.values())
    for module in modules:
        stub(module)
    assert run(["bench", "all", "--short"]) == FINE
    assert ran == [(module, Size.SHORT) for module in modules]
    told, remarks = capsys.readouterr()
    head, *rows = told.splitlines()
    assert head.split() == ["figure", "value", "floor", "ratio", "goal", "unit", "holds"]
    for row, module in zip(rows, modules, strict=False):
        words = f"figure of {module} 1,234 2,469 0.50 ≤ 1,000,000 events/s yes"
        assert row.split() == words.split()
    assert "cores; CPython" in rows[-1]
    assert remarks == ""

    lossy = "tx"
    assert run(["bench", "--json"]) == FAILED
    assert ran[len(modules) :] == [(module, Size.LONG) for module in modules]
    results = json.loads(capsys.readouterr().out)["results"]
    assert [each["name"] for each in results] == [f"figure of {module}" for module in modules]
    assert [each["holds"] for each in results] == [module != "tx" for module in modules]


def test_the_floor_of_a_ping_is_an_echo() -> None:
    heard = hear_from(load.echo, 3, 0)
    assert 0 < heard["p50_us"] <= heard["p99_us"]


def test_every_benchmark_has_efforts_of_every_size() -> None:
    from motet_labs.bench import (
        audit,
        delivery,
        journal,
        logs,
        match,
        mobility,
        ordering,
        route,
        spark,
        tx,
    )

    for module in (delivery, journal, logs, match, mobility, ordering, route, spark, tx):
        assert set(module.EFFORTS) == set(Size), module.__name__
    assert set(audit.DELIVERIES) == set(Size)
