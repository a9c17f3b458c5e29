"""Which broker a command uses if none is named."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from motet.broker.overlay.topology import Topology
from motet.cli.console import MISUSE, Misuse
from motet.cli.main import run
from motet.cli.options import (
    EXAMPLE,
    all_addresses,
    entry_broker,
    only_broker,
    split_address,
    split_word,
)
from motet.fleet.supervisor import Supervisor

up = import_module("motet.cli.up")
URL = "motet://127.0.0.1:7901"
ONE = '[brokers.B1]\nlisten = "127.0.0.1:7901"\n'
TWO = f'{ONE}[brokers.B2]\nlisten = "127.0.0.1:7902"\nlinks = ["B1"]\n'


def overlay(folder: Path, text: str, patch: pytest.MonkeyPatch) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "topology.toml").write_text(text)
    patch.chdir(folder)


@pytest.mark.parametrize("text", [ONE, TWO])
def test_a_client_enters_at_the_first_broker_and_says_so(
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    overlay(tmp_path, text, monkeypatch)
    assert entry_broker(None) == URL
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"using broker B1 at {URL}, from run/topology.toml\n"


def test_a_broker_that_is_named_is_used_silently(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_broker("motet://elsewhere:1") == "motet://elsewhere:1"
    assert only_broker("motet://elsewhere:1") == "motet://elsewhere:1"
    assert capsys.readouterr().err == ""


def test_logs_are_of_one_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay(tmp_path, TWO, monkeypatch)
    with pytest.raises(Misuse, match="has 2 brokers, and each has its own log") as refused:
        only_broker(None)
    assert f"B1 at {URL}, B2 at motet://127.0.0.1:7902" in refused.value.hint


def test_the_only_broker_has_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay(tmp_path, ONE, monkeypatch)
    assert only_broker(None) == URL


def test_status_shows_all_brokers_of_the_same_overlay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay(tmp_path, TWO, monkeypatch)
    assert all_addresses([]) == {"B1": URL, "B2": "motet://127.0.0.1:7902"}


@pytest.mark.parametrize(
    "command",
    [
        ["pub", "a=1"],
        ["sub", "true"],
        ["tx", "outcome", "me/B1-1/1"],
        ["log", "list"],
        ["log", "cursors"],
        ["log", "cursor", "nightly", "--drop"],
        ["log", "read"],
        ["log", "read", "a = 1"],
    ],
    ids=" ".join,
)
def test_every_command_looks_into_the_folder(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(command) == MISUSE
    assert "there is no overlay in run/" in capsys.readouterr().err
    overlay(tmp_path, ONE.replace("7901", "1"), monkeypatch)
    assert run(command) != 0  # nothing listens on port 1
    said = capsys.readouterr().err
    assert "using broker B1 at motet://127.0.0.1:1, from run/topology.toml" in said
    assert "no broker answers at motet://127.0.0.1:1" in said


def test_arguments_are_split_from_the_address() -> None:
    assert split_address(None, []) == ("", [])
    assert split_address(URL, ["a=1"]) == (URL, ["a=1"])
    assert split_address("a=motet://x", ["b=2"]) == ("", ["a=motet://x", "b=2"])
    assert split_word("a = 1", None, "FILTER") == ("", "a = 1")
    assert split_word("ftp://x", "a = 1", "FILTER") == ("ftp://x", "a = 1")
    for first, hint in (
        (None, f"alone for the overlay in run/, or after an address: {EXAMPLE} FILTER"),
        ("motet://x:1", "give it after the address: motet://x:1 FILTER"),
    ):
        with pytest.raises(Misuse, match="FILTER is missing") as raised:
            split_word(first, None, "FILTER")
        assert hint in raised.value.hint


@pytest.mark.parametrize("where", ["run", "the other run"])
def test_motet_up_prints_the_command_that_shows_its_overlay(
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    supervisor = Supervisor(Topology.parse(TWO), Path(where), lambda _: None)
    Path(where).mkdir()
    supervisor.fleet.file.write_text(TWO)
    up._show(supervisor, json=False)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "motet status" in line)
    assert all_addresses(shlex.split(line)[2:]) == {"B1": URL, "B2": "motet://127.0.0.1:7902"}
