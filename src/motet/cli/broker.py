"""`motet broker`: one broker in this process."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from motet.audit.recording import VARIABLE
from motet.broker.compaction import LEAST_BYTES
from motet.broker.config import BrokerConfig
from motet.broker.driver import BrokerDriver
from motet.broker.reloading import reload
from motet.broker.retaining import retention_in
from motet.broker.service import open_broker, serve
from motet.broker.topology import LEGAL_NAME, Topology, full_address
from motet.cli.ending import Misuse
from motet.cli.options import DEFAULT_DIRECTORY, Json
from motet.cli.voice import say, say_json
from motet.model.limits import MAX_HEARTBEAT_S, MIN_HEARTBEAT_S
from motet.runtime.journal import DURABILITIES
from motet.runtime.loop import run, take_all_descriptors
from motet.runtime.tcp import host_and_port
from motet.runtime.wiring import Wiring

Name = Annotated[str, typer.Option(help="The broker's name in the overlay.")]
Listen = Annotated[
    str, typer.Option(help="Where to listen, like motet://127.0.0.1:7701; port 0 is any.")
]
Link = Annotated[
    list[str] | None,
    typer.Option(
        help="A neighbour: NAME=URL if this broker dials, NAME alone if the other one does."
    ),
]
Plan = Annotated[Path | None, typer.Option(help="Take everything from this topology file instead.")]
Lease = Annotated[
    float | None,
    typer.Option(min=0.1, help="Seconds that the session of an absent client lives [30]."),
]
Heartbeat = Annotated[
    float | None,
    typer.Option(
        min=MIN_HEARTBEAT_S,
        max=MAX_HEARTBEAT_S,
        help="Seconds between signs of life; a connection is dead after three without one [2].",
    ),
]

Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder of its journal and snapshots [run/NAME]."),
]
Kept = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(DURABILITIES),
        help="How an operation is kept before it is acknowledged [fsync].",
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The broker that decides transactions, the same for all [itself, if it has no link].",
    ),
]
History = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar=VARIABLE,
        help="Write down there what its log takes, for `motet pipeline audit`.",
    ),
]
WhileStdin = Annotated[bool, typer.Option("--while-stdin", help="Stop when standard input ends.")]
SnapshotBytes = Annotated[
    int,
    typer.Option(
        min=1,
        show_default=False,
        help="How much the journal grows, at least, until the next snapshot [32 MiB].",
    ),
]
Retain = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="KEY=VALUE,…",
        help="How long events are kept: history, age, size, share, free, cursors "
        "[history=1d,age=7d,size=10GiB].",
    ),
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Go on without events whose log is damaged or gone; they are reported as lost.",
    ),
]


def _given(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def broker(
    name: Name,
    listen: Listen = "",
    link: Link = None,
    topology: Plan = None,
    covering: Annotated[bool, typer.Option(help="Let covering filters suppress others.")] = False,
    lease: Lease = None,
    heartbeat: Heartbeat = None,
    data: Data = None,
    durability: Kept = None,
    snapshot_bytes: SnapshotBytes = LEAST_BYTES,
    retention: Retain = None,
    accept_loss: AcceptLoss = False,
    root: Root = None,
    history: History = None,
    while_stdin: WhileStdin = False,
    json: Json = False,
) -> int:
    """Run one broker until SIGTERM or Ctrl-C.

    Either --listen and --link say where it stands, or --topology FILE with --name. On SIGHUP that
    FILE is read again, and other neighbours or addresses are taken over.
    """
    settings = _given(covering=covering or None, lease_s=lease, heartbeat_s=heartbeat)
    if topology is not None:
        if listen or link or settings or durability or retention or root:
            raise Misuse(
                "--topology says everything",
                "leave --listen, --link, --covering, --lease, --heartbeat, --durability, "
                "--retention and --root out",
            )
        plan = Topology.load(topology)
        config, wiring, kept = plan.config(name), plan.wiring(name), plan.durability
        retained = plan.retention_of(name)
    else:
        settings["root"] = root or ("" if link else name)
        config, wiring = _alone(name, listen, link or [], settings)
        kept = durability or DURABILITIES[0]
        retained = retention_in(retention or "")
    if kept not in DURABILITIES:
        raise Misuse(f"{kept!r} is no durability", f"choose {', '.join(DURABILITIES)}")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )

    def ready(driver: BrokerDriver) -> None:
        if json:
            say_json({"broker": name, "address": driver.address, "pid": os.getpid()})
        else:
            say(f"{name} listens on {driver.address} (pid {os.getpid()}); Ctrl-C stops it")
        if while_stdin:
            threading.Thread(target=_stop_with_stdin, daemon=True).start()

    folder = data or DEFAULT_DIRECTORY / name
    opening = partial(open_broker, data=folder, durability=kept, snapshot_bytes=snapshot_bytes)
    opening = partial(opening, retention=retained, accept_loss=accept_loss, history=history)
    return run(_serve(config, wiring, opening, ready, topology))


async def _serve(
    config: BrokerConfig,
    wiring: Wiring,
    opening: Callable[[BrokerConfig, Wiring], BrokerDriver],
    ready: Callable[[BrokerDriver], None],
    topology: Path | None,
) -> int:
    take_all_descriptors()
    driver = opening(config, wiring)
    again = partial(reload, driver, topology, config.name) if topology is not None else None
    return await serve(driver, ready=ready, reload=again)


def _alone(
    name: str, listen: str, links: list[str], settings: dict[str, Any]
) -> tuple[BrokerConfig, Wiring]:
    if not LEGAL_NAME.fullmatch(name):
        raise Misuse(f"{name!r} cannot name a broker", "use letters, digits, '-' and '_'")
    if not listen:
        raise Misuse("where shall it listen?", "--listen motet://127.0.0.1:7701, or --topology")
    where = full_address(listen)
    host_and_port(where)  # better refused now than after its folder was opened
    dial: dict[str, str] = {}
    neighbours: list[str] = []
    for given in links:
        neighbour, separator, address = given.partition("=")
        if not LEGAL_NAME.fullmatch(neighbour) or (separator and not address):
            raise Misuse(f"{given!r} is not a link", "--link B2=motet://127.0.0.1:7702")
        if neighbour == name or neighbour in neighbours:
            raise Misuse(f"{neighbour!r} is linked twice, or to itself")
        neighbours.append(neighbour)
        if separator:
            dial[neighbour] = full_address(address)
            host_and_port(dial[neighbour])  # better refused now than dialled in vain for ever
    config = BrokerConfig(name, tuple(neighbours), **settings)
    return config, Wiring(where, dial)


def _stop_with_stdin() -> None:
    """Whoever started this broker holds the other end: when it is gone, however it went, so
    are we. On a thread, because a regular file or a terminal cannot be watched by a loop."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
