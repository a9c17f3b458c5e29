"""`motet status`: brokers, links, tables, queues and rates of an overlay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from motet.broker.topology import Topology
from motet.cli import overview
from motet.cli.ending import FAILED, FINE, Misuse
from motet.cli.interrupt import until_interrupted
from motet.cli.looking import Answer, ask_all
from motet.cli.options import DEFAULT_DIRECTORY, Json
from motet.cli.voice import out, say_json
from motet.errors import MotetError
from motet.runtime.loop import run


def status(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL|FILE]...", help="Brokers' addresses, or topology files."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    json: Json = False,
) -> int:
    """Show the state of an overlay: the one that `motet up` has started here, if none is given.

    Exit status 1 if a broker does not answer.
    """
    addresses = _addresses(targets or [])
    if watch:
        return run(until_interrupted(_watch(addresses, every, json)))
    answers = run(ask_all(addresses))
    if json:
        say_json(as_json(addresses, answers))
    else:
        out().print(overview.of(addresses, answers))
    return FAILED if any(isinstance(answer, MotetError) for answer in answers.values()) else FINE


def _addresses(targets: list[str]) -> dict[str, str]:
    """What to ask for each broker; a broker given by its address alone is called by it."""
    addresses: dict[str, str] = {}
    if not targets:
        used = DEFAULT_DIRECTORY / "topology.toml"
        topology = Topology.load(used) if used.exists() else Topology.default()
        return {place.name: place.listen for place in topology.processes}
    for target in targets:
        if "://" in target:
            addresses[target] = target
        elif Path(target).exists():
            topology = Topology.load(target)
            addresses |= {place.name: place.listen for place in topology.processes}
        else:
            raise Misuse(
                f"{target!r} is neither an address nor a file", "motet://127.0.0.1:7701, or a path"
            )
    return addresses


def as_json(addresses: dict[str, str], answers: dict[str, Answer]) -> dict[str, Any]:
    """`brokers`: what those who answer say of themselves; `unreachable`: the others."""
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
            say_json(as_json(addresses, await ask_all(addresses)))
            await asyncio.sleep(every_s)
    with Live(console=out(), auto_refresh=False) as page:
        while True:
            page.update(overview.of(addresses, await ask_all(addresses)), refresh=True)
            await asyncio.sleep(every_s)
