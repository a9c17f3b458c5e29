"""`motet sequencer`: one site of a sequencer in this process."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.service import serve
from motet.broker.folder.compaction import LEAST_BYTES
from motet.broker.folder.journal import DURABILITIES
from motet.broker.overlay.topology import LEGAL_NAME, Wiring, full_address
from motet.cli.broker import (
    Heartbeat,
    History,
    Kept,
    SnapshotBytes,
    WhileStdin,
    stop_with_stdin,
)
from motet.cli.console import Misuse, say, say_json
from motet.cli.options import DEFAULT_DIRECTORY, Json, option
from motet.protocol.sequencing.messages import MODES
from motet.runtime.loop import run, take_all_descriptors
from motet.runtime.tcp import host_and_port
from motet.sequencer.config import SiteConfig
from motet.sequencer.service import open_site
from motet.sequencer.sites_file import Sites

NAME = "S1"
"""The name of a site that is alone."""

Name = Annotated[
    str | None, option("NAME", "The site's name in the line.", show_default=f"{NAME}, if alone")
]
Listen = Annotated[
    str,
    option(
        "URL", "The address to listen on, like motet://127.0.0.1:7720; port 0 takes any free port."
    ),
]
File = Annotated[
    Path | None, option("FILE", "Take all settings from this file of sites.", "--sites")
]
Data = Annotated[
    Path | None, option("DIR", "The folder of its journal and snapshots.", show_default="run/NAME")
]
Mode = Annotated[
    str | None,
    option(
        "|".join(MODES),
        "Topics are ordered together if one stream has both, or if two have.",
        show_default=MODES[0],
    ),
]
Lease = Annotated[
    float | None,
    option(
        "SECONDS",
        "How long a number waits for its publisher to confirm it; then it is void.",
        min=0.1,
        show_default="10",
    ),
]
Keep = Annotated[
    float | None,
    option(
        "SECONDS",
        "How long a stream is kept whose client says nothing.",
        min=0.1,
        show_default="60",
    ),
]


def _given(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def sequencer(
    listen: Listen = "",
    data: Data = None,
    mode: Mode = None,
    durability: Kept = None,
    lease: Lease = None,
    keep: Keep = None,
    heartbeat: Heartbeat = None,
    sites: File = None,
    name: Name = None,
    snapshot_bytes: SnapshotBytes = LEAST_BYTES,
    history: History = None,
    while_stdin: WhileStdin = False,
    json: Json = False,
) -> int:
    """Run a sequencer until SIGTERM or Ctrl-C.

    It numbers the events of topics, so that `motet.ordering` gives them in one order over any event
    service. One site needs --listen; several share a file: --sites FILE and --name.
    """
    settings = _given(mode=mode, lease_s=lease, keep_s=keep, heartbeat_s=heartbeat)
    if sites is not None:
        if listen or settings or durability:
            raise Misuse(
                "--sites FILE contains all settings of the sites",
                "omit --listen, --mode, --lease, --keep, --heartbeat and --durability, or omit "
                "--sites",
            )
        file = Sites.load(sites)
        if name is None:
            raise Misuse(
                "--sites FILE describes several sites", f"give --name: {', '.join(file.places)}"
            )
        config, wiring, kept = file.config(name), file.wiring(name), file.durability
    else:
        config, wiring = _alone(name or NAME, listen, settings)
        kept = durability or DURABILITIES[0]
    if kept not in DURABILITIES:
        raise Misuse(f"unknown durability {kept!r}", f"choose one of {', '.join(DURABILITIES)}")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )

    def ready(driver: BrokerDriver) -> None:
        if json:
            say_json({"site": config.name, "address": driver.address, "pid": os.getpid()})
        else:
            say(f"{config.name} listens on {driver.address} (pid {os.getpid()}); Ctrl-C stops it")
        if while_stdin:
            threading.Thread(target=stop_with_stdin, daemon=True).start()

    async def served() -> int:
        take_all_descriptors()
        folder = data or DEFAULT_DIRECTORY / config.name
        site = open_site(config, wiring, folder, kept, snapshot_bytes, history)
        return await serve(site, ready=ready)

    return run(served())


def _alone(name: str, listen: str, settings: dict[str, Any]) -> tuple[SiteConfig, Wiring]:
    if not LEGAL_NAME.fullmatch(name):
        raise Misuse(f"{name!r} is not a valid name of a site", "use letters, digits, '-' and '_'")
    if not listen:
        raise Misuse(
            "the sequencer has no address to listen on",
            "give --listen motet://127.0.0.1:7720, or --sites FILE and --name",
        )
    where = full_address(listen)
    host_and_port(where)  # reject it before the folder is opened
    config = SiteConfig(name, **settings)
    config.check()
    return config, Wiring(where)
