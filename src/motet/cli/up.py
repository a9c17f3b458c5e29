"""`motet up`: an overlay of broker processes."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from motet.broker.overlay.topology import Topology
from motet.cli.console import FINE, Misuse, out, remark, say, say_json, table
from motet.cli.options import DEFAULT_DIRECTORY, Json, argument, option, status_command
from motet.client.channel import ask_all
from motet.errors import MotetError
from motet.fleet.process import StartFailed
from motet.fleet.run_folder import Leftovers, RunFolder
from motet.fleet.supervisor import Supervisor
from motet.runtime.loop import run
from motet.runtime.tcp import address_of

DEFAULT_BROKERS = 3
STOP, RELOAD, RESTART = "stop", "reload", "restart"
MOVE_IT = "--port moves the default overlay; a topology FILE says where each broker listens"


def up(
    file: Annotated[
        Path | None, argument("FILE", "A topology file (TOML).", show_default="brokers in a line")
    ] = None,
    brokers: Annotated[
        int | None,
        option("N", "Without FILE: number of brokers in a line.", min=1, max=64, show_default="3"),
    ] = None,
    port: Annotated[
        int | None,
        option(
            "PORT",
            "Without FILE: the port of the first broker.",
            min=1,
            max=65_535,
            show_default="7701",
        ),
    ] = None,
    directory: Annotated[
        Path, option("DIR", "Folder of the overlay: its topology and logs.", "--dir")
    ] = DEFAULT_DIRECTORY,
    history: Annotated[
        Path | None, option("DIR", "Brokers record histories there, for `motet pipeline audit`.")
    ] = None,
    json: Json = False,
) -> int:
    """Run an overlay of broker processes until Ctrl-C.

    Each broker is a process of its own. A broker that dies is reported and restarted, after a pause
    that doubles while it keeps dying. With --json, one line is printed when all links are up.
    `motet overlay reload` and `motet overlay restart` change the overlay while it runs.

    A topology file contains the address of each broker, and its links; the links form one tree:

    \b
        [brokers.B1]
        listen = "127.0.0.1:7701"
        [brokers.B2]
        listen = "127.0.0.1:7702"
        links = ["B1"]
    """
    if file is not None and (brokers is not None or port is not None):
        raise Misuse("a FILE says how many brokers there are and where", "give one or the other")
    topology = Topology.load(file) if file is not None else _line(brokers, port)
    options = () if history is None else ("--history", str(history.resolve()))
    return run(_keep_up(topology, file, Supervisor(topology, directory, remark, options), json))


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
    """The requests that arrive as signals, in order."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._on_terminal = sys.stdin is not None and sys.stdin.isatty()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._queue.put_nowait, STOP)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.add_signal_handler(signal.SIGUSR1, self._queue.put_nowait, RESTART)

    def _hang_up(self) -> None:
        """SIGHUP also says that our terminal was closed; then stop."""
        deserted = self._on_terminal and not sys.stdin.isatty()
        self._queue.put_nowait(STOP if deserted else RELOAD)

    async def next(self) -> str:
        return await self._queue.get()


async def _keep_up(
    topology: Topology, file: Path | None, supervisor: Supervisor, json: bool
) -> int:
    wishes = _Wishes()
    directory = supervisor.fleet.directory
    folder = RunFolder(directory)
    leftovers = Leftovers(directory, (place.name for place in topology.processes))
    folder.claim()
    try:
        starting = asyncio.create_task(supervisor.start())
        wish = asyncio.create_task(wishes.next())
        await asyncio.wait({starting, wish}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if starting.done():
                _begun(starting, leftovers)
                folder.advance()
                await _tell_of_code(supervisor)
                _show(supervisor, json)
                while await wish != STOP:
                    await _fulfil(wish.result(), supervisor, file, folder)
                    wish = asyncio.create_task(wishes.next())
            remark("stopping")
        finally:
            wish.cancel()
            starting.cancel()
            await asyncio.wait({starting})
            await supervisor.stop()
    finally:
        folder.release()
    return FINE


def _begun(starting: asyncio.Task[None], leftovers: Leftovers) -> None:
    """Raise the error that kept the overlay from starting, after its files are removed."""
    problem = starting.exception()
    if problem is None:
        return
    if isinstance(problem, StartFailed) and problem.is_misuse:
        problem = Misuse(str(problem), MOVE_IT if problem.hint else "")
    if isinstance(problem, Exception):
        problem.add_note(leftovers.remove(problem))
    raise problem


async def _fulfil(wish: str, supervisor: Supervisor, file: Path | None, folder: RunFolder) -> None:
    """Reload or restart. If that is refused, the overlay stays as it is."""
    folder.write("changing")
    try:
        if wish == RESTART:
            chosen = folder.chosen()
            await supervisor.restart_each(chosen)
            if not chosen:
                remark("all brokers have been restarted")
        else:
            topology = Topology.load(file or supervisor.fleet.file)
            await supervisor.become(topology)
            await _tell_of_code(supervisor)
            remark(f"the new topology is in effect: {', '.join(topology.names)}")
    except MotetError as problem:
        remark(f"{wish} was refused: {problem}")
        folder.advance(str(problem))
    else:
        folder.advance()


async def _tell_of_code(supervisor: Supervisor) -> None:
    """Hosted clients whose code a broker does not have cannot run there."""
    if not supervisor.fleet.topology.hosted:
        return
    found: dict[tuple[str, str], list[str]] = {}
    for broker, answer in (await ask_all(supervisor.fleet.addresses)).items():
        containers = {} if isinstance(answer, MotetError) else answer.get("container", {})
        for client, hosted in containers.items():
            if hosted["state"] == "not registered":
                found.setdefault((client, hosted["error"]), []).append(broker)
    for (client, error), brokers in found.items():
        remark(f"the hosted client {client} cannot run at {', '.join(brokers)}: {error}")


def _show(supervisor: Supervisor, json: bool) -> None:
    fleet, topology = supervisor.fleet, supervisor.fleet.topology
    rows = [
        {
            "broker": name,
            "address": fleet.addresses[name],
            "pid": process.pid,
            "links": list(topology.neighbours(topology.head(name))),
        }
        for name, process in fleet.processes.items()
    ]
    if json:
        say_json({"ready": True, "topology": str(fleet.file), "brokers": rows})
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
    say(f"all links are up; topology and logs are in {fleet.directory}/")
    say(f"  motet sub {topology.brokers[0].listen} \"symbol = 'ACME' and price > 10\"")
    say(f"  motet pub {last} symbol=ACME price=12.5")
    say(f"  {status_command(fleet.directory)}")
    say("Ctrl-C stops the overlay")
