"""`motet up`: an overlay of broker processes."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from motet.broker.topology import Topology
from motet.cli.ending import FINE, Misuse
from motet.cli.options import Json
from motet.cli.supervisor import Supervisor
from motet.cli.voice import out, remark, say, say_json, table
from motet.runtime.loop import run
from motet.runtime.tcp import address_of

DEFAULT_DIRECTORY = Path("run")
DEFAULT_BROKERS = 3


def up(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A topology file (TOML).")
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Without a FILE: so many brokers in a line; default 3."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Without a FILE: the port of the first broker."),
    ] = None,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where logs and the topology in use are kept.")
    ] = DEFAULT_DIRECTORY,
    json: Json = False,
) -> int:
    r"""Start an overlay and keep it up until Ctrl-C or SIGTERM.

    Brokers run as processes of their own; one that dies is reported and restarted, after a pause
    that doubles while it keeps dying. With --json, one line is printed when all links are up.

    A topology file says who listens where and who dials whom; the links form one tree:

        \[brokers.B1]
        listen = "127.0.0.1:7701"
        \[brokers.B2]
        listen = "127.0.0.1:7702"
        links = ["B1"]
    """
    if file is not None and (brokers is not None or port is not None):
        raise Misuse("a FILE says how many brokers there are and where", "give one or the other")
    topology = Topology.load(file) if file is not None else _line(brokers, port)
    return run(_keep_up(topology, directory, json))


def _line(brokers: int | None, port: int | None) -> Topology:
    topology = Topology.default(brokers or DEFAULT_BROKERS)
    if port is None:
        return topology
    if port + len(topology.brokers) > 65_536:
        raise Misuse(f"{len(topology.brokers)} brokers do not fit above port {port}")
    places = tuple(
        replace(place, listen=address_of("127.0.0.1", port + i))
        for i, place in enumerate(topology.brokers)
    )
    return replace(topology, brokers=places)


async def _keep_up(topology: Topology, directory: Path, json: bool) -> int:
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told_to_stop.set)
    supervisor = Supervisor(topology, directory, remark)
    starting = asyncio.create_task(supervisor.start())
    stopping = asyncio.create_task(told_to_stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _show(supervisor, json)
            await stopping
        remark("stopping")
    finally:
        starting.cancel()
        await asyncio.wait({starting})
        await supervisor.stop()
        stopping.cancel()
    return FINE


def _show(supervisor: Supervisor, json: bool) -> None:
    topology = supervisor.topology
    rows = [
        {
            "broker": child.place.name,
            "address": child.place.listen,
            "pid": child.pid,
            "links": list(topology.neighbours(child.place.name)),
        }
        for child in supervisor.children
    ]
    if json:
        say_json({"ready": True, "topology": str(supervisor.file), "brokers": rows})
        return
    shown = table("", "broker", "address", "pid", "links", right=("pid",))
    for row in rows:
        links = row["links"]
        assert isinstance(links, list)
        shown.add_row(
            str(row["broker"]), str(row["address"]), str(row["pid"]), ", ".join(links) or "–"
        )
    out().print(shown)
    last = topology.brokers[-1].listen
    say("")
    say(f"all links are up; topology and logs are in {supervisor.directory}/")
    say(f"  motet sub {topology.brokers[0].listen} \"symbol = 'ACME' and price > 10\"")
    say(f"  motet pub {last} symbol=ACME price=12.5")
    say("  motet status")
    say("Ctrl-C stops the overlay")
