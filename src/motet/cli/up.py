"""`motet up`: an overlay of broker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from motet.audit.recording import VARIABLE
from motet.broker.topology import Topology
from motet.cli.ending import FINE, Misuse
from motet.cli.options import DEFAULT_DIRECTORY, Json
from motet.cli.running import Marker
from motet.cli.supervisor import Supervisor
from motet.cli.traces import Traces
from motet.cli.voice import out, remark, say, say_json, table
from motet.errors import MotetError
from motet.runtime.loop import run
from motet.runtime.tcp import address_of

DEFAULT_BROKERS = 3
STOP, RELOAD, RESTART = "stop", "reload", "restart"


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
    history: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Brokers write a history there: `motet pipeline audit`."),
    ] = None,
    json: Json = False,
) -> int:
    r"""Start an overlay and keep it up until Ctrl-C or SIGTERM.

    Brokers run as processes of their own; one that dies is reported and restarted, after a pause
    that doubles while it keeps dying. With --json, one line is printed when all links are up.
    `motet overlay reload` and `motet overlay restart` change it while it runs.

    A topology file says who listens where and who dials whom; the links form one tree:

        \[brokers.B1]
        listen = "127.0.0.1:7701"
        \[brokers.B2]
        listen = "127.0.0.1:7702"
        links = ["B1"]
    """
    if file is not None and (brokers is not None or port is not None):
        raise Misuse("a FILE says how many brokers there are and where", "give one or the other")
    if history is not None:
        os.environ[VARIABLE] = str(history.resolve())  # the brokers' processes look there
    topology = Topology.load(file) if file is not None else _line(brokers, port)
    return run(_keep_up(topology, file, directory, json))


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


class _Wishes:
    """What signals ask of us, one after the other."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._on_terminal = sys.stdin is not None and sys.stdin.isatty()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._queue.put_nowait, STOP)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.add_signal_handler(signal.SIGUSR1, self._queue.put_nowait, RESTART)

    def _hang_up(self) -> None:
        """The same signal says that our terminal was closed; then nobody wants us any more."""
        deserted = self._on_terminal and not sys.stdin.isatty()
        self._queue.put_nowait(STOP if deserted else RELOAD)

    async def next(self) -> str:
        return await self._queue.get()


async def _keep_up(topology: Topology, file: Path | None, directory: Path, json: bool) -> int:
    wishes = _Wishes()
    marker = Marker(directory)
    traces = Traces(directory, (place.name for place in topology.processes))
    supervisor = Supervisor(topology, directory, remark)
    marker.claim()
    try:
        starting = asyncio.create_task(supervisor.start())
        wish = asyncio.create_task(wishes.next())
        await asyncio.wait({starting, wish}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if starting.done():
                _begun(starting, traces)
                marker.advance()
                _show(supervisor, json)
                while await wish != STOP:
                    await _fulfil(wish.result(), supervisor, file, marker)
                    wish = asyncio.create_task(wishes.next())
            remark("stopping")
        finally:
            wish.cancel()
            starting.cancel()
            await asyncio.wait({starting})
            await supervisor.stop()
    finally:
        marker.release()
    return FINE


def _begun(starting: asyncio.Task[None], traces: Traces) -> None:
    """Raises what kept the overlay from starting, when nothing of it is left."""
    try:
        starting.result()
    except Exception as problem:
        problem.add_note(traces.remove(problem))
        raise


async def _fulfil(wish: str, supervisor: Supervisor, file: Path | None, marker: Marker) -> None:
    """Reload or restart; what is refused is said, and the overlay goes on."""
    marker.write("changing")
    try:
        if wish == RESTART:
            await supervisor.restart_each()
            remark("all brokers are restarted")
        else:
            topology = Topology.load(file or supervisor.file)
            await supervisor.become(topology)
            remark(f"the topology is applied: {', '.join(topology.names)}")
    except MotetError as problem:
        remark(f"{wish} is refused: {problem}")
        marker.advance(str(problem))
    else:
        marker.advance()


def _show(supervisor: Supervisor, json: bool) -> None:
    topology = supervisor.topology
    rows = [
        {
            "broker": child.place.name,
            "address": child.place.listen,
            "pid": child.pid,
            "links": list(topology.neighbours(topology.head(child.place.name))),
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
