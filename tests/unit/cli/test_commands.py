"""Commands that need no overlay: what they refuse, and how they say it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from motet import __version__
from motet.cli import console
from motet.cli.console import Misuse
from motet.cli.main import app, run
from motet.cli.sim import parse_seeds
from motet.errors import Disconnected, FilterError, StillSpreading
from motet_labs.figures import Figure, machine, report

CYCLE = """
[brokers.B1]
listen = "127.0.0.1:7901"
links = ["B2"]
[brokers.B2]
listen = "127.0.0.1:7902"
links = ["B3"]
[brokers.B3]
listen = "127.0.0.1:7903"
links = ["B1"]
"""
URL = "motet://127.0.0.1:1"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"motet {__version__}\n"


def commands(group: Any, *path: str) -> list[tuple[str, ...]]:
    """Every command with its words, those of groups included."""
    found = []
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        found += commands(command, *path, name) if inner else [(*path, name)]
    return found


ALL = commands(typer.main.get_command(app))


def test_all_commands_are_found() -> None:
    assert {("up",), ("sub",), ("log", "cursor"), ("journal", "verify")} <= set(ALL)


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_explains_itself(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "Usage: motet " + " ".join(command) in help_text
    assert "--json" in help_text


def test_motet_without_arguments_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == console.MISUSE
    assert "Usage: motet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["frob"], "frob"),
        (["up", "--frob"], "--frob"),
        (["up", "--brokers", "0"], "--brokers"),
        (["up", "missing.toml"], "missing.toml"),
        (["up", "missing.toml", "--brokers", "3"], "FILE"),
        (["up", "--brokers", "64", "--port", "65500"], "do not fit"),
        (["broker"], "--name"),
        (["broker", "--name", "B 1", "--listen", "127.0.0.1:0"], "B 1"),
        (["broker", "--name", "B1"], "listen"),
        (["broker", "--name", "B1", "--listen", "nowhere"], "nowhere"),
        (["broker", "--name", "B1", "--listen", "127.0.0.1:0", "--link", "=x"], "=x"),
        (["broker", "--name", "B1", "--listen", "127.0.0.1:0", "--link", "B1"], "B1"),
        (["broker", "--name", "B1", "--topology", "missing.toml"], "missing.toml"),
        (["broker", "--name", "B1", "--topology", "x", "--listen", "127.0.0.1:0"], "--topology"),
        (["pub"], "URL"),
        (["pub", "ftp://x", "a=1"], "ftp://x"),
        (["pub", URL, "a"], "name=value"),
        (["pub", URL, "9lives=1"], "9lives"),
        (["pub", URL, "a=99999999999999999999"], "64 bits"),
        (["pub", URL, "a=1", "--advertise", "a >"], "column"),
        (["pub", URL, "a=1", "--count", "0"], "--count"),
        (["pub", URL, "--count", "2"], "--count"),
        (["sub", URL], "FILTER"),
        (["sub", URL, "price >"], "column"),
        (["sub", URL, "true", "--keep", "9"], "add --durable, or omit --keep"),
        (["sub", URL, "price > 'x' and price > 3 and"], "column"),
        (["status", "missing.toml"], "missing.toml"),
        (["status", "--every", "0"], "--every"),
        (["sim", "--seeds", "nine"], "nine"),
        (["sim", "--seeds", "5-1"], "5-1"),
        (["sim", "--profile", "sunny"], "sunny"),
        (["sim", "--jobs", "-1"], "--jobs"),
        (["sim", "--limit", "3"], "--seeds random"),
        (["sim", "--seconds", "3"], "--seeds random"),
        (["sim", "--seeds", "random", "--every-step"], "--every-step"),
        (["sim", "--fault", "cut"], "--fault"),
        (["sim", "--seeds", "random", "--replay", "7"], "--replay"),
        (["sim", "--seeds", "random", "--limit", "0"], "--limit"),
        (["sim", "--seeds", "random", "--profile", "sunny"], "sunny"),
        (["sim", "--seeds", "random", "--findings", "/dev/null/x"], "--findings"),
        (["bench", "frob"], "'what': 'frob' is not one of 'route', 'match', 'journal', "),
        (["bench", "route", "--events", "9"], "--events"),
        (["bench", "spark", "--events", "0"], "--events"),
    ],
)
def test_misuse_is_one_clear_line_and_status_2(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == console.MISUSE
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0].startswith("error: ")
    assert problem in captured.err
    assert "Traceback" not in captured.err


def test_a_cycle_in_a_topology_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cycle.toml"
    file.write_text(CYCLE)
    assert run(["up", str(file), "--dir", str(tmp_path)]) == console.MISUSE
    assert "cycle" in capsys.readouterr().err


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(FilterError):
        run(["sub", URL, "price >", "--debug"])


@pytest.mark.parametrize("command", [["pub", URL, "a=1"], ["sub", URL, "a = 1"], ["status", URL]])
def test_a_command_fails_with_status_1_if_no_broker_answers(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == console.FAILED
    captured = capsys.readouterr()
    said = captured.err + captured.out
    assert "no broker answers" in said
    assert said.count(URL) == 1
    assert said.count("`motet up`") <= 1


def test_hints_follow_the_kind_of_error() -> None:
    assert console.hint_for(Misuse("x", "do y")) == "do y"
    assert "motet up" in console.hint_for(Disconnected("x"))
    assert console.status_of(Disconnected("x")) == console.FAILED


def test_seeds() -> None:
    assert parse_seeds("7") == [7]
    assert parse_seeds("0-3") == [0, 1, 2, 3]
    assert parse_seeds("3, 1-2,2") == [3, 1, 2]
    for wrong in ("", "-", "1-", "-1", "1-2-3", "a", "1,,2", "0-99999999"):
        with pytest.raises(Misuse):
            parse_seeds(wrong)


def test_figures_have_one_shape() -> None:
    fine = Figure("hop", 4.0, "µs", 2.0, 6.0)
    poor = Figure("rate", 10.0, "events/s", None, 100.0, "at least")
    told = report([fine, poor, Figure("p99", 9.0, "µs")])
    assert set(told) == {"results", "machine"}
    assert told["results"][0] == {
        "name": "hop",
        "value": 4.0,
        "unit": "µs",
        "floor": 2.0,
        "ratio": 2.0,
        "goal": 6.0,
        "holds": True,
    }
    assert told["results"][1]["holds"] is False
    assert told["results"][1]["ratio"] is None
    assert told["results"][2]["holds"] is None
    assert {"cpu", "cores", "python", "platform", "engine", "loop", "load_average"} <= set(
        machine()
    )


def test_a_figure_with_losses_does_not_count() -> None:
    assert Figure("rate", 1e9, "events/s", None, 1.0, "at least", counts=False).holds is False


# ── keywords of the Python client ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("connect with `durable=True` to go on", "connect with --durable to go on"),
        ("connect with `order='total'`", "connect with --order total"),
        ("`keep` is above 0", "--keep is above 0"),
        ("see `motet status`, count `lost`", "see `motet status`, count `lost`"),
    ],
)
def test_errors_speak_of_options(written: str, said: str) -> None:
    assert console.in_options(written) == said


def test_keywords_in_errors_stand_where_the_command_line_finds_them() -> None:
    """Whatever an application or the command line may be told to write, it is told in one way."""
    source = Path(console.__file__).parents[1]
    bare = re.compile(rf"(?<!`)\b({'|'.join(console.OPTIONS)})=(True|'|$)")
    for room in ("client", "broker"):
        for path in sorted((source / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not bare.search(node.value), f"{path.name}: {node.value}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sub", URL, "true", "--client", "a", "--durable", "--keep", "0"], "--keep is above 0"),
        (["sub", URL, "true", "--order", "some"], "--order is 'publisher' or 'total'"),
        (["sub", URL, "true", "--since", "2999-01-31T12:00:00Z"], "--since lies in the future"),
        (
            ["sub", URL, "true", "--since", "9999-12-31T23:59:59-12:00"],
            "--since lies in the future",
        ),
        (["log", "read", URL, "--since", "2999-01-31T12:00:00Z"], "--since lies in the future"),
        (["log", "read", URL, "--since", "0"], "--since is a tick from 1"),
    ],
)
def test_an_error_of_the_client_names_the_command_line_option(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == console.MISUSE
    assert problem in capsys.readouterr().err


def test_a_plan_that_is_committed_but_not_effective_everywhere_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Coordinator:
        async def __aenter__(self) -> Coordinator:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def execute(self, *_: object, **__: object) -> str:
            problem = StillSpreading("B3, or a broker behind it, is away")
            problem.tx = "me/B1-1/1"
            raise problem

    monkeypatch.setattr("motet.cli.tx.connect", lambda *_, **__: Coordinator())
    plan = tmp_path / "plan.toml"
    plan.write_text('[[step]]\nclient = "me"\ndo = "publish"\nevent = { n = 1 }\n')
    assert run(["tx", "plan", URL, str(plan)]) == 0
    said = capsys.readouterr()
    assert said.out == "committed: me/B1-1/1\n"
    assert "not effective everywhere yet: B3" in said.err
    assert run(["tx", "plan", URL, str(plan), "--json"]) == 0
    assert '"effective": false' in capsys.readouterr().out
