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

from motet.audit.recorder import VARIABLE
from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.service import open_broker, reload, serve
from motet.broker.folder.compaction import LEAST_BYTES
from motet.broker.folder.journal import DURABILITIES
from motet.broker.folder.retention import retention_in
from motet.broker.overlay.topology import LEGAL_NAME, Topology, Wiring, full_address
from motet.cli.console import Misuse, say, say_json
from motet.cli.options import DEFAULT_DIRECTORY, Covering, Json, option, switch
from motet.hosted.container import attach
from motet.model.limits import MAX_HEARTBEAT_S, MIN_HEARTBEAT_S
from motet.protocol.config import BrokerConfig
from motet.runtime.loop import run, take_all_descriptors
from motet.runtime.tcp import host_and_port
from motet.sequencer.service import sequencer_of

Name = Annotated[str, option("NAME", "The broker's name in the overlay.")]
Listen = Annotated[
    str,
    option(
        "URL", "The address to listen on, like motet://127.0.0.1:7701; port 0 takes any free port."
    ),
]
Link = Annotated[
    list[str] | None,
    option(
        "NAME[=URL]",
        "A neighbour: NAME=URL if this broker connects to it, NAME if it connects to this "
        "one; may be repeated.",
    ),
]
Plan = Annotated[Path | None, option("FILE", "Take all settings from this topology file.")]
Lease = Annotated[
    float | None,
    option(
        "SECONDS",
        "How long the session of a disconnected client is kept.",
        min=0.1,
        show_default="30",
    ),
]
Heartbeat = Annotated[
    float | None,
    option(
        "SECONDS",
        "Interval of heartbeats; a peer that is silent for three of them, and at least a "
        "second, is considered dead.",
        min=MIN_HEARTBEAT_S,
        max=MAX_HEARTBEAT_S,
        show_default="2",
    ),
]

Data = Annotated[
    Path | None, option("DIR", "The folder of its journal and snapshots.", show_default="run/NAME")
]
Kept = Annotated[
    str | None,
    option(
        "|".join(DURABILITIES),
        "How durable an operation is before it is acknowledged.",
        show_default=DURABILITIES[0],
    ),
]
Root = Annotated[
    str | None,
    option(
        "NAME",
        "The broker that decides transactions; must be the same for all brokers.",
        show_default="this broker, if it has no link",
    ),
]
History = Annotated[
    Path | None,
    option("DIR", "Record every logged event there, for `motet pipeline audit`.", envvar=VARIABLE),
]
WhileStdin = Annotated[bool, switch("--while-stdin", "Stop at the end of standard input.")]
SnapshotBytes = Annotated[
    int,
    option(
        "BYTES",
        "Minimum growth of the journal between two snapshots.",
        min=1,
        show_default="32 MiB",
    ),
]
Retain = Annotated[
    str | None,
    option(
        "KEY=VALUE,…",
        "How long events are kept. Keys: history, age, size, share, free, cursors.",
        "--retention",
        show_default="history=1d,age=7d,size=10GiB",
    ),
]
AcceptLoss = Annotated[
    bool,
    switch(
        "--accept-loss",
        "Start although the event log is damaged or missing; its events are reported lost.",
    ),
]


def _given(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def broker(
    name: Name,
    listen: Listen = "",
    link: Link = None,
    topology: Plan = None,
    covering: Covering = False,
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

    Describe the broker with --listen and --link, or with --topology FILE and --name. On SIGHUP it
    reads FILE again and applies changed neighbours and addresses.
    """
    settings = _given(covering=covering or None, lease_s=lease, heartbeat_s=heartbeat)
    plan = None
    if topology is not None:
        if listen or link or settings or durability or retention or root:
            raise Misuse(
                "--topology FILE contains all settings of the broker",
                "omit --listen, --link, --covering, --lease, --heartbeat, --durability, "
                "--retention and --root, or omit --topology",
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
        raise Misuse(f"unknown durability {kept!r}", f"choose one of {', '.join(DURABILITIES)}")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )

    def ready(driver: BrokerDriver) -> None:
        if json:
            say_json({"broker": name, "address": driver.address, "pid": os.getpid()})
        else:
            say(f"{name} listens on {driver.address} (pid {os.getpid()}); Ctrl-C stops it")
        if while_stdin:
            threading.Thread(target=stop_with_stdin, daemon=True).start()

    folder = data or DEFAULT_DIRECTORY / name
    opening = partial(open_broker, data=folder, durability=kept, snapshot_bytes=snapshot_bytes)
    opening = partial(opening, retention=retained, accept_loss=accept_loss, history=history)
    return run(_serve(config, wiring, opening, ready, topology, plan, folder))


async def _serve(
    config: BrokerConfig,
    wiring: Wiring,
    opening: Callable[[BrokerConfig, Wiring], BrokerDriver],
    ready: Callable[[BrokerDriver], None],
    topology: Path | None,
    plan: Topology | None,
    data: Path,
) -> int:
    take_all_descriptors()
    driver = opening(config, wiring)
    if plan is not None and plan.hosted:
        attach(driver, plan)
    again = None
    if topology is not None:
        again = partial(reload, driver, topology, config.name, plan)
    async with sequencer_of(driver, plan, data):
        return await serve(driver, ready=ready, reload=again)


def _alone(
    name: str, listen: str, links: list[str], settings: dict[str, Any]
) -> tuple[BrokerConfig, Wiring]:
    if not LEGAL_NAME.fullmatch(name):
        raise Misuse(f"{name!r} is not a valid broker name", "use letters, digits, '-' and '_'")
    if not listen:
        raise Misuse(
            "the broker has no address to listen on",
            "give --listen motet://127.0.0.1:7701, or --topology FILE",
        )
    where = full_address(listen)
    host_and_port(where)  # reject it before the folder is opened
    dial: dict[str, str] = {}
    neighbours: list[str] = []
    for given in links:
        neighbour, separator, address = given.partition("=")
        if not LEGAL_NAME.fullmatch(neighbour) or (separator and not address):
            raise Misuse(f"{given!r} is not a link", "write --link B2=motet://127.0.0.1:7702")
        if neighbour == name or neighbour in neighbours:
            raise Misuse(
                f"{neighbour!r} is linked twice, or is the broker itself",
                "name each neighbour once with --link",
            )
        neighbours.append(neighbour)
        if separator:
            dial[neighbour] = full_address(address)
            host_and_port(dial[neighbour])  # reject it now, not at every attempt to connect
    config = BrokerConfig(name, tuple(neighbours), **settings)
    return config, Wiring(where, dial)


def stop_with_stdin() -> None:
    """The parent holds the other end, so standard input ends with the parent. Runs on a thread,
    because an event loop cannot watch a regular file or a terminal."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
