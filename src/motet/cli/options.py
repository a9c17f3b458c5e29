"""Options that several commands share, and the brokers that they name or that run/ contains."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from motet.broker.overlay.topology import Topology
from motet.cli.console import Misuse, remark
from motet.fleet.fleet import TOPOLOGY


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option with a value, which `metavar` stands for on the help page. It is called as its
    parameter if it has no other `names`."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def switch(names: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(names, help=help)


def argument(metavar: str, help: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, **more)


Json = Annotated[bool, switch("--json", "Print JSON instead of text.")]
Targets = Annotated[
    list[str] | None,
    argument(
        "URL|FILE", "Addresses of brokers, or topology files.", show_default="the overlay in run/"
    ),
]
Url = Annotated[
    str | None,
    argument(
        "URL",
        "The address of a broker, like motet://127.0.0.1:7701.",
        show_default="a broker of the overlay in run/",
    ),
]
ClientId = Annotated[str, option("ID", "The client's id.", show_default="a new one")]
Covering = Annotated[bool, typer.Option(help="Forward a filter only if no other one covers it.")]
Plots = Annotated[bool, switch("--plots/--no-plots", "Draw plots; needs matplotlib.")]

DEFAULT_DIRECTORY = Path("run")
"""The folder of an overlay: its topology, its logs, and a folder for each broker."""


def group(name: str, help: str) -> typer.Typer:
    """A group of commands. Help is plain text: rich would read words in brackets as markup."""
    return typer.Typer(name=name, help=help, no_args_is_help=True, rich_markup_mode=None)


# ── the brokers that a command talks to ──────────────────────────────────────────────────

EXAMPLE = "motet://127.0.0.1:7701"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def used_topology() -> Path:
    """The topology of the overlay that `motet up` started in this folder."""
    return DEFAULT_DIRECTORY / TOPOLOGY


def status_command(directory: Path) -> str:
    """The command that shows the overlay of a folder: without a file it looks in run/ only."""
    if directory == DEFAULT_DIRECTORY:
        return "motet status"
    return f"motet status {shlex.quote(str(directory / TOPOLOGY))}"


def all_addresses(targets: Sequence[str]) -> dict[str, str]:
    """By broker, its address. A broker that is given by its address has the address as name."""
    addresses: dict[str, str] = {}
    if not targets:
        topology = Topology.load(used_topology()) if used_topology().exists() else None
        places = (topology or Topology.default()).processes
        return {place.name: place.listen for place in places}
    for target in targets:
        if "://" in target:
            addresses[target] = target
        elif Path(target).exists():
            topology = Topology.load(target)
            addresses |= {place.name: place.listen for place in topology.processes}
        else:
            raise Misuse(
                f"{target!r} is neither an address nor a file",
                f"give an address like {EXAMPLE}, or the path of a topology file",
            )
    return addresses


def split_address(first: str | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """The address at the start of a command line, if any, and the other words."""
    if first is None or is_address(first):
        return first or "", list(words)
    return "", [first, *words]


def split_word(first: str | None, second: str | None, name: str) -> tuple[str, str]:
    """Of `[URL] WORD`: the address, if there is one, and the other word."""
    if second is not None:
        return first or "", second  # the transport reports an invalid address
    if first is None:
        there = f"alone for the overlay in {DEFAULT_DIRECTORY}/, or after an address"
        raise Misuse(f"{name} is missing", f"give it {there}: {EXAMPLE} {name}")
    if is_address(first):
        raise Misuse(f"{name} is missing", f"give it after the address: {first} {name}")
    return "", first


def is_address(word: str) -> bool:
    return _ADDRESS.match(word) is not None


def entry_broker(url: str | None) -> str:
    """The address, or that of the first broker of the overlay here: a client reaches the whole
    overlay from any broker."""
    return url or _chosen(Topology.load(_existing()))


def only_broker(url: str | None) -> str:
    """The address, or that of the overlay's only broker: each broker has its own log."""
    if url:
        return url
    topology = Topology.load(_existing())
    if len(topology.brokers) > 1:
        known = ", ".join(f"{place.name} at {place.listen}" for place in topology.brokers)
        raise Misuse(
            f"the overlay in {DEFAULT_DIRECTORY}/ has {len(topology.brokers)} brokers, and each "
            "has its own log",
            f"give the address of one: {known}",
        )
    return _chosen(topology)


def _existing() -> Path:
    path = used_topology()
    if not path.exists():
        raise Misuse(
            f"no URL is given, and there is no overlay in {DEFAULT_DIRECTORY}/",
            f"give the address of a broker, like {EXAMPLE}, or start an overlay with `motet up`",
        )
    return path


def _chosen(topology: Topology) -> str:
    place = topology.brokers[0]
    remark(f"using broker {place.name} at {place.listen}, from {used_topology()}")
    return place.listen
