"""`motet sequencer`: one site of a sequencer in this process, or the witness of sites; and an
operator's word on who leads."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from motet.audit.recorder import VARIABLE
from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.service import serve
from motet.broker.folder.compaction import LEAST_BYTES
from motet.broker.folder.journal import DURABILITIES
from motet.broker.overlay.topology import LEGAL_NAME, Wiring, full_address
from motet.cli.broker import Heartbeat, Kept, SnapshotBytes, WhileStdin, stop_with_stdin
from motet.cli.console import FINE, CommandFailed, Misuse, say, say_json
from motet.cli.options import DEFAULT_DIRECTORY, Json, argument, option, switch
from motet.client.channel import RequestChannel, ask_all
from motet.client.session.state import Failure, error_of
from motet.errors import Disconnected, NotSafe
from motet.protocol.sequencing.messages import MODES
from motet.protocol.sequencing.standby import PromoteAnswer, PromoteRequest
from motet.protocol.session.messages import Status, StatusRequest
from motet.runtime.addresses import check_address
from motet.runtime.loop import run, take_all_descriptors
from motet.runtime.tcp import host_and_port
from motet.sequencer.config import SiteConfig
from motet.sequencer.service import open_site, open_witness
from motet.sequencer.sites_file import Sites
from motet.sequencer.witness import WitnessConfig

NAME = "S1"
"""The name of a site that is alone."""
WITNESS_NAME = "witness"
WHOSE = {
    "other": "--standby names the other process of this site",
    "witness": "--witness names a process of `motet sequencer witness`",
}

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
    Path | None,
    option(
        "DIR",
        "The folder of its journal and snapshots.",
        show_default="run/NAME, of a standby run/NAME-standby",
    ),
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
Standby = Annotated[
    str | None,
    option(
        "URL",
        "Begin as the standby of the process of this site at URL. Later either may lead.",
        show_default="this process begins as primary",
    ),
]
Second = Annotated[
    bool,
    switch("--second", "With --sites: this is the process that the file calls standby."),
]
Witness = Annotated[
    str | None,
    option(
        "URL",
        "Where `motet sequencer witness` listens: it decides which process leads.",
        show_default="an operator promotes",
    ),
]
Patience = Annotated[
    float | None,
    option(
        "SECONDS",
        "The other process is gone if nothing is heard of it for so long.",
        min=0.1,
        show_default="2",
    ),
]
History = Annotated[
    Path | None,
    option(
        "DIR",
        "Record there which number each request was given, for `motet pipeline audit`.",
        envvar=VARIABLE,
    ),
]
sequencer = typer.Typer(name="sequencer", rich_markup_mode=None, invoke_without_command=True)


def _given(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


@sequencer.callback()
def site(
    context: typer.Context,
    listen: Listen = "",
    data: Data = None,
    mode: Mode = None,
    durability: Kept = None,
    lease: Lease = None,
    keep: Keep = None,
    heartbeat: Heartbeat = None,
    sites: File = None,
    name: Name = None,
    standby: Standby = None,
    second: Second = False,
    witness: Witness = None,
    patience: Patience = None,
    snapshot_bytes: SnapshotBytes = LEAST_BYTES,
    history: History = None,
    while_stdin: WhileStdin = False,
    json: Json = False,
) -> int:
    """Run a sequencer until SIGTERM or Ctrl-C.

    It numbers the events of topics, so that `motet.ordering` gives them in one order over any event
    service. One site needs --listen; several share a file: --sites FILE and --name. A second
    process with --standby mirrors the first one, and takes over if the witness grants it.
    """
    if context.invoked_subcommand is not None:
        _refuse_misplaced(context, context.invoked_subcommand)
        return FINE
    settings = _given(
        mode=mode, lease_s=lease, keep_s=keep, heartbeat_s=heartbeat, patience_s=patience
    )
    if sites is not None:
        if listen or settings or durability or standby or witness:
            raise Misuse(
                "--sites FILE contains all settings of the sites",
                "omit all of them but --name, --second and --data, or omit --sites",
            )
        file = Sites.load(sites)
        if name is None:
            raise Misuse(
                "--sites FILE describes several sites", f"give --name: {', '.join(file.places)}"
            )
        config, kept = file.config(name, second=second), file.durability
        wiring = file.wiring(name, second=second)
    else:
        if second:
            raise Misuse("--second needs --sites FILE", "without a file, give --standby URL")
        if standby is not None:
            settings |= {"other": _address(standby), "second": True}
        if witness is not None:
            settings["witness"] = _address(witness)
        config, wiring = _alone(name or NAME, listen, settings)
        kept = durability or DURABILITIES[0]
    if kept not in DURABILITIES:
        raise Misuse(f"unknown durability {kept!r}", f"choose one of {', '.join(DURABILITIES)}")
    place = f"{config.name}-standby" if config.second else config.name
    folder = data or DEFAULT_DIRECTORY / place
    return _serve(
        lambda: open_site(config, wiring, folder, kept, snapshot_bytes, history),
        config.name,
        json=json,
        while_stdin=while_stdin,
    )


def _refuse_misplaced(context: typer.Context, command: str) -> None:
    """Options before the name of a command are those of a site."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise Misuse(
                f"{option} stands before {command}",
                f"write motet sequencer {command} {option} …, if it has that option",
            )


def _serve(opened: Callable[[], BrokerDriver], name: str, *, json: bool, while_stdin: bool) -> int:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )

    def ready(driver: BrokerDriver) -> None:
        if json:
            say_json({"site": name, "address": driver.address, "pid": os.getpid()})
        else:
            say(f"{name} listens on {driver.address} (pid {os.getpid()}); Ctrl-C stops it")
        if while_stdin:
            threading.Thread(target=stop_with_stdin, daemon=True).start()

    async def served() -> int:
        take_all_descriptors()
        return await serve(opened(), ready=ready)

    return run(served())


def _address(text: str) -> str:
    where = full_address(text)
    check_address(where)
    return where


@sequencer.command()
def witness(
    listen: Listen = "",
    data: Annotated[
        Path | None, option("DIR", "The folder of its registers.", show_default="run/NAME")
    ] = None,
    name: Annotated[str, option("NAME", "Its name, in messages.")] = WITNESS_NAME,
    while_stdin: WhileStdin = False,
    json: Json = False,
) -> int:
    """Run a witness until SIGTERM or Ctrl-C.

    It keeps one register for each site: who leads, and which standby is in step. Run it on a third
    machine, so that it answers when one of the other two is gone. Many sites can share one.
    """
    if not LEGAL_NAME.fullmatch(name):
        raise Misuse(f"{name!r} is not a valid name", "use letters, digits, '-' and '_'")
    if not listen:
        raise Misuse(
            "the witness has no address to listen on", "give --listen motet://127.0.0.1:7730"
        )
    wiring, folder = Wiring(_address(listen)), data or DEFAULT_DIRECTORY / name
    return _serve(
        lambda: open_witness(WitnessConfig(name), wiring, folder),
        name,
        json=json,
        while_stdin=while_stdin,
    )


@sequencer.command()
def promote(
    url: Annotated[str, argument("URL", "The address of the process that shall lead.")],
    risk: Annotated[
        bool,
        switch(
            "--risk-double-numbers",
            "Even if it lacks numbers that were given, or another process leads as well: then "
            "numbers may be given twice, and subscribers disagree on their order.",
        ),
    ] = False,
    timeout: Annotated[float, option("SECONDS", "How long to wait for an answer.", min=0.1)] = 10.0,
    json: Json = False,
) -> int:
    """Let one of the two processes of a site lead, alone.

    For sites without a witness. It refuses if that is not safe: while the other process leads and
    answers, or if this one was not in step with it.
    """
    where = _address(url)
    text = run(_promoted(where, risk, timeout))
    if json:
        say_json({"address": where, "text": text})
    else:
        say(text)
    return FINE


async def _promoted(where: str, risk: bool, timeout_s: float) -> str:
    channel = RequestChannel(where, timeout_s, "never")
    try:
        try:
            pair = (await channel.ask(StatusRequest(), Status)).state.get("pair")
        except Disconnected as problem:
            hint = "give the address of a process of the site that runs, or start it"
            raise CommandFailed(f"{where} cannot be asked: {problem}", hint) from None
        if not isinstance(pair, dict):
            raise CommandFailed(f"{where} is no site of a sequencer", "give the address of one")
        other = pair["standby"]
        if other and not risk:
            answer = (await ask_all({"other": other}, timeout_s))["other"]
            if isinstance(answer, dict) and answer.get("pair", {}).get("role") == "primary":
                raise NotSafe(f"the primary at {other} answers; stop it first")
        answered = await channel.ask(PromoteRequest(risk), PromoteAnswer)
        if answered.error:
            raise error_of(Failure(answered.error, answered.text))
        return answered.text
    finally:
        await channel.close()


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
    for given, key in (("--standby", "other"), ("--witness", "witness")):
        if settings.get(key) == where:
            raise Misuse(f"{given} {where} is where this process listens", WHOSE[key])
    if settings.get("other", "") == settings.get("witness"):
        raise Misuse("--standby and --witness are the same address", WHOSE["other"])
    config = SiteConfig(name, **settings)
    config.check()
    return config, Wiring(where)
