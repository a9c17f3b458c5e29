"""`motet overlay`: change the overlay that `motet up` runs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from motet.broker.folder.journal import VOLATILE
from motet.broker.overlay.topology import Topology
from motet.cli.console import (
    FAILED,
    FINE,
    INTERRUPTED,
    CommandFailed,
    Misuse,
    complain,
    out,
    remark,
    say,
    say_json,
    table,
)
from motet.cli.drain import SHOWN, counted
from motet.cli.operation import Bar, carried_out
from motet.cli.options import DEFAULT_DIRECTORY, Json, group, option, status_command, switch
from motet.cli.rebalance import as_json as balance_as_json
from motet.cli.rebalance import unevenness
from motet.client.channel import ask_all
from motet.errors import MotetError
from motet.fleet.fleet import TOPOLOGY
from motet.fleet.restart import DrainingRestart, RestartReport
from motet.fleet.run_folder import changing, choose, running
from motet.runtime.loop import run

PATIENCE_S = 300.0
DRAIN_S = 60.0
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
    with changing(directory):
        return _ask(directory, signal.SIGHUP, json)


@overlay.command()
def restart(
    drain: Annotated[
        bool, switch("--drain", "Before a broker is restarted, move its clients to others.")
    ] = False,
    rebalance: Annotated[
        bool, switch("--rebalance", "With --drain: even out the clients at the end.")
    ] = False,
    timeout: Annotated[
        float,
        option(
            "SECONDS", "With --drain: how long the clients of a broker may take to move.", min=0.001
        ),
    ] = DRAIN_S,
    directory: Directory = DEFAULT_DIRECTORY,
    json: Json = False,
) -> int:
    """Restart all brokers, one after the other.

    The next broker is restarted when all links are up and all messages are acknowledged. Clients
    reconnect to their sessions and lose nothing that was acknowledged.

    With --drain, clients do not even lose their connections for the time of a restart: they move to
    other brokers before, if possible to those that are restarted already. A client that cannot
    move, for example because it is in a transaction, stays and reconnects; it is listed, and why.
    The last broker has no clients then, unless --rebalance is given.
    """
    if not drain and (rebalance or timeout != DRAIN_S):
        given = "--rebalance" if rebalance else "--timeout"
        raise Misuse(f"{given} is for restarts that drain brokers", "add --drain")
    with changing(directory):
        if drain:
            return _drain_and_restart(directory, timeout, rebalance, json)
        choose(directory, ())
        return _ask(directory, signal.SIGUSR1, json)


def _ask(directory: Path, number: signal.Signals, json: bool) -> int:
    generation = run(_change(directory, number))
    rows = _rows(directory)
    if json:
        say_json({"generation": generation, "brokers": rows})
    else:
        _show(rows)
    return FINE


async def _change(directory: Path, number: signal.Signals) -> int:
    """Have the overlay changed; returns its new generation."""
    before = running(directory)
    os.kill(before["pid"], number)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = running(directory)
        if now["generation"] > before["generation"] and now["state"] == "up":
            if now["error"]:
                hint = f"`{status_command(directory)}` shows the overlay as it is now"
                raise CommandFailed(now["error"], hint)
            return int(now["generation"])
        await asyncio.sleep(POLL_S)
    raise CommandFailed(
        f"the overlay did not finish the change within {PATIENCE_S:g} s",
        f"read the logs of its brokers in {directory}/",
    )


def _rows(directory: Path) -> list[dict[str, Any]]:
    topology = Topology.load(directory / TOPOLOGY)
    answers = run(ask_all({place.name: place.listen for place in topology.processes}))
    rows: list[dict[str, Any]] = []
    for place in topology.processes:
        answer = answers[place.name]
        pid = 0 if isinstance(answer, MotetError) else answer["process"]["pid"]
        links = list(topology.neighbours(topology.head(place.name)))
        rows.append({"broker": place.name, "address": place.listen, "pid": pid, "links": links})
    return rows


def _show(rows: list[dict[str, Any]]) -> None:
    shown = table("", "broker", "address", "pid", "links", right=("pid",))
    for row in rows:
        near = ", ".join(row["links"]) or "–"
        shown.add_row(str(row["broker"]), str(row["address"]), str(row["pid"]), near)
    out().print(shown)
    say("")
    say("all links are up")


# ── restarts that drain ──────────────────────────────────────────────────────────────────


def _drain_and_restart(directory: Path, timeout_s: float, rebalance: bool, json: bool) -> int:
    topology = Topology.load(directory / TOPOLOGY)

    async def restart_one(name: str) -> None:
        choose(directory, (name,))
        await _change(directory, signal.SIGUSR1)

    with Bar("restarting", json) as bar:

        def show(report: RestartReport, text: str) -> None:
            done = len(report.restarted)
            bar.show(done, len(topology.processes), text)

        work = DrainingRestart(
            {place.name: place.listen for place in topology.processes},
            restart_one,
            timeout_s,
            show,
            volatile=topology.durability == VOLATILE,
            even_out=rebalance,
        )
        report = carried_out(work, _state_after, lambda report: report.brokers)
    if report is None:
        return INTERRUPTED
    rows = {row["broker"]: row for row in _rows(directory)}
    if json:
        say_json(as_json(report, rows))
    else:
        _tell(report, rows)
    if report.refused:
        last = report.brokers[-1].broker
        again = f"{_state_after(report)}; run the same command again"
        complain(f"{last} was not restarted: {report.refused}", again)
        return FAILED
    if report.interrupted:
        complain(f"interrupted: {_state_after(report)}", "run the same command again")
        return INTERRUPTED
    if report.balance is not None and not report.balance.is_even:
        complain(unevenness(report.balance), "`motet rebalance` goes on")
        return FAILED
    return FINE


def as_json(report: RestartReport, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "brokers": [
            rows[each.broker]
            | {
                "restarted": each.restarted,
                "moved": each.moved,
                "stay": each.stay,
                "not_drained": each.problem,
                "draining": each.still_draining,
                "seconds": round(each.seconds, 3),
            }
            for each in report.brokers
        ],
        "not_restarted": _not_restarted(report),
        "rebalance": report.balance and balance_as_json(report.balance, False),
        "interrupted": report.interrupted,
        "refused": report.refused,
    }


def _tell(report: RestartReport, rows: Mapping[str, dict[str, Any]]) -> None:
    numbers = ("pid", "moved", "stayed", "seconds")
    shown = table("", "broker", *numbers, "clients went to", right=numbers)
    stay = table("", "broker", "client", "why it stayed")
    for each in report.brokers:
        pid = str(rows[each.broker]["pid"]) if each.restarted else "–"
        counts = (f"{len(each.moved):,}", f"{len(each.stay):,}", f"{each.seconds:.1f}")
        shares = sorted(Counter(each.moved.values()).items())
        where = ", ".join(f"{target} ({many:,})" for target, many in shares) or "–"
        shown.add_row(each.broker, pid, *counts, where)
        for client, why in list(each.stay.items())[:SHOWN]:
            stay.add_row(each.broker, client, why)
        if len(each.stay) > SHOWN:
            stay.add_row(each.broker, "…", f"{len(each.stay) - SHOWN:,} more; --json lists all")
    out().print(shown)
    if stay.row_count:
        say("")
        out().print(stay)
    for each in report.brokers:
        if each.problem:
            remark(f"{each.broker} was not drained: {each.problem}")
        if each.still_draining and each.restarted:
            remark(f"{each.broker} is draining; `motet drain {each.broker} --undo` ends that")
    if not report.waiting and report.restarted:
        say("")
        say(f"all links are up; {_spread_after(report)}")


def _spread_after(report: RestartReport) -> str:
    balance = report.balance
    if balance is None:
        return "`motet rebalance` evens out the clients"
    counts = ", ".join(f"{name} {many:,}" for name, many in (balance.after or {}).items())
    return f"{counted(len(balance.moved), 'client')} moved to even out: {counts}"


def _not_restarted(report: RestartReport) -> list[str]:
    return [each.broker for each in report.brokers if not each.restarted] + report.waiting


def _state_after(report: RestartReport) -> str:
    """What an interrupt or a failure has left."""
    done = ", ".join(report.restarted) or "no broker"
    text = f"restarted: {done}; not restarted: {', '.join(_not_restarted(report)) or 'none'}"
    draining = [each.broker for each in report.brokers if each.still_draining]
    for name in draining:
        text += f"; {name} is still draining, `motet drain {name} --undo` ends that"
    return text
