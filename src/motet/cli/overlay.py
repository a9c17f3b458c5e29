"""`motet overlay`: change the overlay that `motet up` keeps running."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from motet.broker.topology import Topology
from motet.cli.ending import FINE, Failure
from motet.cli.looking import ask_all
from motet.cli.options import DEFAULT_DIRECTORY, Json
from motet.cli.running import running
from motet.cli.voice import out, say, say_json, table
from motet.errors import MotetError
from motet.runtime.loop import run

PATIENCE_S = 300.0
POLL_S = 0.05

overlay = typer.Typer(
    name="overlay",
    help="Change the overlay that `motet up` keeps running.",
    no_args_is_help=True,
)
Directory = Annotated[
    Path, typer.Option("--dir", help="The folder that `motet up` was started with.")
]


@overlay.command()
def reload(directory: Directory = DEFAULT_DIRECTORY, json: Json = False) -> int:
    """Read the topology file again: start new brokers, tell the others, stop removed ones.

    The file is the one that `motet up` was given, else topology.toml in its folder. Brokers can
    be added and removed at the leaves, a removed one only when it has no clients left. What
    cannot be done is refused, and everything stays as it was.
    """
    return _ask(directory, signal.SIGHUP, json)


@overlay.command()
def restart(directory: Directory = DEFAULT_DIRECTORY, json: Json = False) -> int:
    """Restart all brokers, one after the other.

    The next one waits until all links are up again and nothing is unacknowledged. Clients
    reconnect, find their sessions, and lose nothing that was acknowledged.
    """
    return _ask(directory, signal.SIGUSR1, json)


def _ask(directory: Path, number: signal.Signals, json: bool) -> int:
    before = running(directory)
    os.kill(before["pid"], number)
    after = _next_generation(directory, before)
    if after["error"]:
        raise Failure(after["error"], "`motet status` shows the overlay as it is now")
    _show(directory, after, json)
    return FINE


def _next_generation(directory: Path, before: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = running(directory)
        if now["generation"] > before["generation"] and now["state"] == "up":
            return now
        time.sleep(POLL_S)
    raise Failure(f"the overlay did not finish within {PATIENCE_S:g} s", "its logs may say why")


def _show(directory: Path, after: dict[str, Any], json: bool) -> None:
    topology = Topology.load(directory / "topology.toml")
    answers = run(ask_all({place.name: place.listen for place in topology.processes}))
    rows: list[dict[str, Any]] = []
    for place in topology.processes:
        answer = answers[place.name]
        pid = 0 if isinstance(answer, MotetError) else answer["process"]["pid"]
        links = list(topology.neighbours(topology.head(place.name)))
        rows.append({"broker": place.name, "address": place.listen, "pid": pid, "links": links})
    if json:
        say_json({"generation": after["generation"], "brokers": rows})
        return
    shown = table("", "broker", "address", "pid", "links", right=("pid",))
    for row in rows:
        near = ", ".join(row["links"]) or "–"
        shown.add_row(str(row["broker"]), str(row["address"]), str(row["pid"]), near)
    out().print(shown)
    say("")
    say("all links are up")
