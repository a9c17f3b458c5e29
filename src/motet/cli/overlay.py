"""`motet overlay`: change the overlay that `motet up` runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

from motet.broker.overlay.topology import Topology
from motet.cli.console import FINE, CommandFailed, out, say, say_json, table
from motet.cli.options import DEFAULT_DIRECTORY, Json, group, option, status_command
from motet.client.channel import ask_all
from motet.errors import MotetError
from motet.fleet.fleet import TOPOLOGY
from motet.fleet.run_folder import running
from motet.runtime.loop import run

PATIENCE_S = 300.0
POLL_S = 0.05

overlay = group("overlay", "Change the overlay that `motet up` runs.")
Directory = Annotated[Path, option("DIR", "The folder that `motet up` was started with.", "--dir")]


@overlay.command()
def reload(directory: Directory = DEFAULT_DIRECTORY, json: Json = False) -> int:
    """Apply a changed topology file to the running overlay.

    The file is the one given to `motet up`, otherwise topology.toml in its folder. New brokers are
    started, removed ones are stopped, and the others are reconfigured. Brokers can be added and
    removed at the leaves; a broker is removed only if it has no clients. An impossible change is
    refused, and the overlay stays as it was.
    """
    return _ask(directory, signal.SIGHUP, json)


@overlay.command()
def restart(directory: Directory = DEFAULT_DIRECTORY, json: Json = False) -> int:
    """Restart all brokers, one after the other.

    The next broker is restarted when all links are up and all messages are acknowledged. Clients
    reconnect to their sessions and lose nothing that was acknowledged.
    """
    return _ask(directory, signal.SIGUSR1, json)


def _ask(directory: Path, number: signal.Signals, json: bool) -> int:
    before = running(directory)
    os.kill(before["pid"], number)
    after = _next_generation(directory, before)
    if after["error"]:
        hint = f"`{status_command(directory)}` shows the overlay as it is now"
        raise CommandFailed(after["error"], hint)
    _show(directory, after, json)
    return FINE


def _next_generation(directory: Path, before: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = running(directory)
        if now["generation"] > before["generation"] and now["state"] == "up":
            return now
        time.sleep(POLL_S)
    raise CommandFailed(
        f"the overlay did not finish the change within {PATIENCE_S:g} s",
        f"read the logs of its brokers in {directory}/",
    )


def _show(directory: Path, after: dict[str, Any], json: bool) -> None:
    topology = Topology.load(directory / TOPOLOGY)
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
