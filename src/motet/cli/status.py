"""`motet status`: brokers, links, tables, queues and rates of an overlay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from motet.cli.console import FAILED, FINE, out, say_json, table
from motet.cli.interrupt import until_interrupted
from motet.cli.options import Json, Targets, all_addresses, option, switch
from motet.client.channel import Answer, ask_all
from motet.errors import MotetError, PeerError
from motet.runtime.loop import run


def status(
    targets: Targets = None,
    watch: Annotated[bool, switch("--watch", "Repeat until Ctrl-C.")] = False,
    every: Annotated[float, option("SECONDS", "Interval of --watch.", min=0.1)] = 1.0,
    json: Json = False,
) -> int:
    """Show brokers, links, tables, moves, queues and rates.

    Without arguments, it shows the overlay that `motet up` started in this folder. Exit status 1 if
    a broker does not answer.
    """
    addresses = all_addresses(targets or [])
    if watch:
        return run(until_interrupted(_watch(addresses, every, json)))
    answers = run(_asked(addresses))
    if json:
        say_json(as_json(addresses, answers))
    else:
        out().print(page_of(addresses, answers))
    return FAILED if any(isinstance(answer, MotetError) for answer in answers.values()) else FINE


async def _asked(addresses: dict[str, str]) -> dict[str, Answer]:
    """What brokers answer. Sites and witnesses of `motet.ordering` answer, too, and have nothing of
    what is shown here."""
    answers = await ask_all(addresses)
    return {name: of_broker(addresses[name], answer) for name, answer in answers.items()}


def of_broker(address: str, answer: Answer) -> Answer:
    if isinstance(answer, MotetError) or "broker" in answer:
        return answer
    if "site" in answer:
        return PeerError(f"{address} is a site of a sequencer: `motet order status` shows it")
    return PeerError(f"{address} is a witness of sites, not a broker")


def as_json(addresses: dict[str, str], answers: dict[str, Answer]) -> dict[str, Any]:
    """`brokers`: the status of those that answer; `unreachable`: the others."""
    return {
        "brokers": [answer for answer in answers.values() if not isinstance(answer, MotetError)],
        "unreachable": [
            {"broker": name, "address": addresses[name], "error": str(answer)}
            for name, answer in answers.items()
            if isinstance(answer, MotetError)
        ],
    }


async def _watch(addresses: dict[str, str], every_s: float, json: bool) -> int:
    if json:
        while True:
            say_json(as_json(addresses, await _asked(addresses)))
            await asyncio.sleep(every_s)
    with Live(console=out(), auto_refresh=False) as page:
        while True:
            page.update(page_of(addresses, await _asked(addresses)), refresh=True)
            await asyncio.sleep(every_s)


# ── tables ───────────────────────────────────────────────────────────────────────────────

LISTED_CONNECTIONS = 20
STALL = timedelta(seconds=1)


def page_of(addresses: Mapping[str, str], answers: Mapping[str, Answer]) -> RenderableType:
    """Everything on one page."""
    states = [answer for answer in answers.values() if not isinstance(answer, MotetError)]
    parts: list[RenderableType] = []
    tables = (_brokers, _tables, _links, _transactions, _moves, _residues, _hosted, _queues)
    for shown in (make(states) for make in tables):
        if shown.row_count:
            parts += [shown, Text()]
    parts += [Text(drained, style="bold") for drained in _drained(states)]
    parts += [Text(failure, style="bold red") for failure in _failures(states)]
    parts += [Text(refusal, style="bold red") for refusal in _refusals(states)]
    parts += [Text(stall, style="bold red") for stall in _stalls(states)]
    parts += [Text(loss, style="bold red") for loss in _losses(states)]
    for name, answer in answers.items():
        if isinstance(answer, MotetError):
            who = "" if name == addresses[name] else f"{name}: "
            parts.append(Text(f"{who}{answer}", style="bold red"))
    return Group(*parts)


def _brokers(states: list[dict[str, Any]]) -> Table:
    numbers = ("pid", "up", "events in/s", "events out/s", "in", "out", "dropped", "refused")
    shown = table("brokers", "broker", "address", "engine", "loop", *numbers, right=numbers)
    for state in states:
        process, traffic = state["process"], state["traffic"]
        shown.add_row(
            state["broker"],
            process["address"],
            process["engine"],
            process["loop"],
            str(process["pid"]),
            _span(process["uptime_s"]),
            f"{traffic['events_in_per_s']:,.0f}",
            f"{traffic['events_out_per_s']:,.0f}",
            f"{traffic['events_in']:,}",
            f"{traffic['events_out']:,}",
            f"{state['dropped_events']:,}",
            f"{state['counts']['refused']:,}",
        )
    return shown


def _tables(states: list[dict[str, Any]]) -> Table:
    names = (
        "advertisements",
        "subscriptions",
        "buffered_subscriptions",
        "clients",
        "waiting_operations",
        "ignored_messages",
    )
    heads = tuple(name.replace("_", " ") for name in names)
    shown = table(
        "tables", "broker", *heads, "sessions", "away", right=(*heads, "sessions", "away")
    )
    for state in states:
        counts = [state["tables"][name] for name in names]
        counts += [state["session_count"], state["sessions_away"]]
        # None: too many to count; see the status of a broker.
        shown.add_row(
            state["broker"], *("–" if count is None else f"{count:,}" for count in counts)
        )
    return shown


def _links(states: list[dict[str, Any]]) -> Table:
    numbers = ("sent", "received", "unacknowledged", "lost events", "given up")
    shown = table("links", "broker", "neighbour", "phase", *numbers, right=numbers)
    for state in states:
        for neighbour, link in state["links"].items():
            phase = Text(link["phase"], style="" if link["phase"] == "up" else "bold red")
            shown.add_row(
                state["broker"],
                neighbour,
                phase,
                f"{link['sent']:,}",
                f"{link['received']:,}",
                f"{link['unacknowledged']:,}",
                f"{link['lost_publications'] + link['overtaken_publications']:,}",
                f"{link['losses']:,}",
            )
    return shown


def _transactions(states: list[dict[str, Any]]) -> Table:
    """Brokers with transactions in progress."""
    numbers = ("open", "deciding", "taking effect")
    shown = table("transactions", "broker", "root", *numbers, "for instance", right=numbers)
    for state in states:
        account = state.get("transactions") or {}
        counts = [account.get(name, 0) for name in ("open", "deciding", "taking_effect")]
        if any(counts):
            listed = account.get("listed", {})
            name = next(iter(listed), "")
            what = f"{name}: {listed[name]['state']}" if name else ""
            shown.add_row(state["broker"], account["root"], *map(str, counts), what)
    return shown


LISTED_MOVES = 20


def _moves(states: list[dict[str, Any]]) -> Table:
    """Clients that are about to move, at their brokers, and those that are on their way."""
    shown = table("moves", "broker", "client", "to", "state")
    rows: list[tuple[str, str, str, str]] = []
    for state in states:
        broker, moves = state["broker"], state.get("moves") or {}
        for client, move in moves.get("departing", {}).items():
            rows.append((broker, client, move["to"], _phase(move)))
        for client, way in moves.get("in_transit", {}).items():
            if way["from"] == broker:
                rows.append((broker, client, way["to"], "on its way"))
    for row in rows[:LISTED_MOVES]:
        shown.add_row(*row)
    if len(rows) > LISTED_MOVES:
        shown.add_row("…", f"{len(rows) - LISTED_MOVES:,} more", "", "")
    return shown


def _phase(move: dict[str, Any]) -> str:
    if move["waits_for"]:
        return f"waits for {move['waits_for']}"
    return {"waiting": "begins", "offering": f"asks {move['to']}"}.get(move["phase"], "decides")


def _residues(states: list[dict[str, Any]]) -> Table:
    """Brokers whose logs owe events of clients that have moved away."""
    shown = table("residues", "broker", "publishers", "for instance", right=("publishers",))
    for state in states:
        clients = (state.get("moves") or {}).get("residues", [])
        if clients:
            shown.add_row(state["broker"], f"{len(clients):,}", clients[0])
    return shown


def _drained(states: list[dict[str, Any]]) -> list[str]:
    """Brokers that take in no sessions, and what they still have."""
    found = []
    for state in states:
        if state.get("draining"):
            count, owed = state["session_count"], state["log_owed"]
            left = f"{count:,} client{'' if count == 1 else 's'} left"
            if owed["owed"]:
                left += f", its log is owed towards {', '.join(owed['towards'])}"
            found.append(f"{state['broker']} is draining: {left}")
    return found


def _refusals(states: list[dict[str, Any]]) -> list[str]:
    """Neighbours that were refused, and why."""
    return [
        f"{state['broker']} refuses {neighbour}: {link['refusal']}"
        for state in states
        for neighbour, link in state["links"].items()
        if link["refusal"]
    ]


def _stalls(states: list[dict[str, Any]]) -> list[str]:
    """The pubends that clients in total order have been waiting for longer than `STALL`."""
    found = []
    for state in states:
        for pubend, stall in state.get("total_order", {}).get("waiting_for", {}).items():
            since = datetime.fromtimestamp(stall["since_s"], UTC)
            if datetime.now(UTC) - since >= STALL:
                many = f"{stall['clients']} client" + "s" * (stall["clients"] != 1)
                who = f"{state['broker']}: events of {many} in total order wait for {pubend}"
                found.append(f"{who} since {since:%Y-%m-%d %H:%M:%S} UTC")
    return found


def _losses(states: list[dict[str, Any]]) -> list[str]:
    """Logs with lost events."""
    found = []
    for state in states:
        log = state.get("pubend") or {}
        who = f"{state['broker']}: {log.get('pubend')}"
        if log.get("destroyed_upto"):
            found.append(
                f"{who} was destroyed up to tick {log['destroyed_upto']}, with its named cursors"
            )
        elif log.get("lost_events"):
            count, upto = log["lost_events"], log["lost_upto"]
            found.append(f"{who} has lost {count:,} events that were owed, up to tick {upto}")
    return found


def _hosted(states: list[dict[str, Any]]) -> Table:
    """Hosted clients, at the brokers where they run, or should."""
    heads = ("broker", "client", "class", "state", "failures")
    shown = table("hosted clients", *heads, right=("failures",))
    for state in states:
        for client, hosted in state.get("container", {}).items():
            if hosted["state"] != "absent" or hosted["error"]:
                row = (state["broker"], client, hosted["class"], hosted["state"])
                shown.add_row(*row, f"{hosted['failures']:,}")
    return shown


def _failures(states: list[dict[str, Any]]) -> Iterator[str]:
    for state in states:
        for client, hosted in state.get("container", {}).items():
            if hosted["error"]:
                yield f"{client} at {state['broker']}: {hosted['error']}"


def _queues(states: list[dict[str, Any]]) -> Table:
    numbers = ("backlog", "dropped", "frames out", "bytes in")
    shown = table("queues", "broker", "connection", "peer", *numbers, right=numbers)
    for broker, connection in _fullest(states):
        who = f"{connection['kind']} {connection['name']}".strip()
        shown.add_row(
            broker,
            Text(f"{who} (slow)", style="bold red") if connection["slow"] else Text(who),
            connection["peer"],
            f"{connection['backlog_bytes']:,}",
            f"{connection['dropped_events']:,}",
            f"{connection['frames_out']:,}",
            f"{connection['bytes_in']:,}",
        )
    return shown


def _fullest(states: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The connections with the longest queues, without our own request."""
    found = [
        (state["broker"], connection)
        for state in states
        for connection in state["connections"]
        if connection["kind"] != "unknown"
    ]
    found.sort(key=lambda pair: (-pair[1]["backlog_bytes"], -pair[1]["dropped_events"]))
    return iter(found[:LISTED_CONNECTIONS])


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
