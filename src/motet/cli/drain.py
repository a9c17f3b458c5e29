"""`motet drain`: empty a broker, so that it can be stopped without anybody noticing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from motet.cli.console import (
    FAILED,
    FINE,
    INTERRUPTED,
    Misuse,
    complain,
    out,
    say,
    say_json,
    table,
)
from motet.cli.operation import Bar, carried_out
from motet.cli.options import Json, all_addresses, argument, option, split_word, switch
from motet.client.orders import order_drain
from motet.fleet.convoy import survey
from motet.fleet.drain import Drain, DrainReport
from motet.runtime.loop import run

SHOWN = 20
"""How many clients that stay are listed for people."""


def drain(
    target: Annotated[
        str | None,
        argument(
            "URL|FILE",
            "The address of the broker, or a topology file.",
            show_default="the overlay in run/",
        ),
    ] = None,
    broker: Annotated[str | None, argument("BROKER", "The broker to be emptied.")] = None,
    to: Annotated[
        str,
        option(
            "BROKERS",
            "Where its clients go, like B1,B2.",
            show_default="its neighbours, the emptiest first",
        ),
    ] = "",
    timeout: Annotated[
        float, option("SECONDS", "When to give up; the broker goes on draining.", min=0.001)
    ] = 60.0,
    undo: Annotated[
        bool, switch("--undo", "Let the broker take in sessions again; no client moves back.")
    ] = False,
    json: Json = False,
) -> int:
    """Empty a broker: all its clients move to others.

    From now on, also after a restart, the broker opens no sessions and takes in no clients that
    move. It goes on to serve its log to readers, and passes on messages between its neighbours. The
    command ends when all clients have arrived elsewhere and all events of its log are acknowledged.
    Clients lose neither their sessions nor events.

    Exit status 0 if the broker is empty then. Otherwise it lists who stays and why. After Ctrl-C,
    or a failure, the broker goes on draining: repeat the command, or give --undo.
    """
    where, name = split_word(target, broker, "BROKER")
    addresses = all_addresses([where] if where else [])
    if undo:
        if to:
            raise Misuse("--undo moves nobody", "omit --to; `motet move` moves single clients")
        return run(_undo(addresses, name, json))
    targets = [each.strip() for each in to.split(",") if each.strip()]
    if to and not targets:
        raise Misuse(f"--to {to!r} names no broker", "give names like B1,B2, or omit --to")
    with Bar(f"draining {name}", json) as bar:

        def show(report: DrainReport, text: str) -> None:
            done = len(report.moved)
            bar.show(done, done + report.left, text)

        work = Drain(addresses, name, targets, timeout, show)
        report = carried_out(work, _state_after, lambda report: report.begun)
    if report is None:
        return INTERRUPTED
    if json:
        say_json(as_json(report))
    else:
        _show(report)
    if report.is_empty:
        return FINE
    complain(_why_not_empty(report), _way_on(report))
    return INTERRUPTED if report.interrupted else FAILED


async def _undo(addresses: Mapping[str, str], broker: str, json: bool) -> int:
    found = await survey(addresses)
    found.check(broker)
    changed = await order_drain(found.addresses[broker], False)
    if json:
        say_json({"broker": broker, "draining": False, "was_draining": changed})
    elif changed:
        say(f"{broker} takes in clients again; `motet rebalance` gives it some")
    else:
        say(f"{broker} was not draining")
    return FINE


# ── what has happened ────────────────────────────────────────────────────────────────────


def as_json(report: DrainReport) -> dict[str, Any]:
    return {
        "broker": report.broker,
        "draining": True,
        "was_draining": report.was_draining,
        "to": list(report.targets),
        "moved": report.moved,
        "away": report.away,
        "stay": report.stay,
        "left": report.left,
        "in_transit": report.in_transit,
        "log_owed": report.log_owed,
        "owed_towards": report.owed_towards,
        "seconds": round(report.moves_s, 3),
        "clients_per_s": round(_rate(report), 1),
        "interrupted": report.interrupted,
        "empty": report.is_empty,
    }


def _rate(report: DrainReport) -> float:
    return len(report.moved) / max(report.moves_s, 1e-3) if report.moved else 0.0


def _show(report: DrainReport) -> None:
    broker = report.broker
    if report.was_draining:
        say(f"{broker} was draining already")
    if report.moved:
        many, shares = len(report.moved), Counter(report.moved.values())
        where = ", ".join(f"{share} to {target}" for target, share in sorted(shares.items()))
        say(f"{counted(many, 'client')} moved in {report.moves_s:.1f} s: {where}")
    if report.away:
        say(f"{len(report.away):,} of them not connected: {broker} sends them on when they come")
    if report.stay:
        stay = table("", "client", "why it stays")
        for client, why in list(report.stay.items())[:SHOWN]:
            stay.add_row(client, why)
        out().print(stay)
        if len(report.stay) > SHOWN:
            say(f"… and {len(report.stay) - SHOWN} more; --json lists all")
    if report.is_empty:
        end = f"`motet drain {broker} --undo` lets it take in clients again"
        say(f"{broker} is empty, and its log is owed to nobody; {end}")


def counted(many: int, what: str) -> str:
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def _why_not_empty(report: DrainReport) -> str:
    found = []
    if report.left:
        found.append(f"{counted(report.left, 'client')} left")
    if report.in_transit:
        found.append(f"{counted(len(report.in_transit), 'client')} on the way")
    if report.log_owed:
        towards = ", ".join(report.owed_towards) or report.broker
        found.append(f"events of its log not acknowledged yet (towards {towards})")
    how = "interrupted: " if report.interrupted else ""
    return f"{how}{report.broker} is not empty: {'; '.join(found)}"


def _way_on(report: DrainReport) -> str:
    again = "it goes on draining: run the same command again to go on"
    return f"{again}, or `motet drain {report.broker} --undo`"


def _state_after(report: DrainReport) -> str:
    """What an interrupt or a failure has left."""
    if not report.begun:
        return f"interrupted before anything was changed at {report.broker}"
    moved = counted(len(report.moved), "client")
    return f"{moved} moved, {report.left:,} left at {report.broker}; {_way_on(report)}"
