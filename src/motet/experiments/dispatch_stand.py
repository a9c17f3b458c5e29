"""An overlay of broker processes whose links take time, and the process with all clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from motet.bench.stand import Stand
from motet.broker.topology import Topology
from motet.chaos.fleet import free_ports
from motet.client.inquiry import ask_all
from motet.errors import MotetError, UnavailableError
from motet.experiments.critical_path import Map
from motet.experiments.dispatching import CAST
from motet.runtime.journal import VOLATILE
from motet.runtime.tcp import address_of

HOST = "127.0.0.1"
STOP_BOUND_S = 5.0
WHOLE_BOUND_S = 30.0


class Child:
    """A process that answers every line with a line, both JSON."""

    def __init__(self, process: subprocess.Popen[bytes], name: str) -> None:
        self.process = process
        self._name = name

    def ask(self, **what: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            self.process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self.hear_line())
        return heard

    def hear_line(self) -> bytes:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            said = self.process.stderr.read().decode(errors="replace").strip()
            raise UnavailableError(f"{self._name} failed: {said[-2000:]}")
        return line


@contextlib.contextmanager
def child(*command: str, name: str) -> Iterator[Child]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdin=pipe, stdout=pipe, stderr=pipe, process_group=0
    ) as process:
        try:
            yield Child(process, name)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_BOUND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@dataclass(frozen=True)
class Scene:
    """Brokers and clients, ready. `urls` are where clients connect to, by broker."""

    topology: Topology
    brokers: list[Stand]
    urls: list[str]
    load: Child
    echo_port: int
    """Where an echo answers, over a link like the others."""

    def map(self) -> Map:
        """Of the first cast."""
        names = self.topology.names
        return Map(self.topology, tuple(names[at % len(names)] for at in range(CAST)))


@contextlib.contextmanager
def scene(
    topology: Topology, folder: Path, *, delay_s: float = 0.0, durability: str = VOLATILE
) -> Iterator[Scene]:
    """With `delay_s`, every link takes so long, those of clients too."""
    ports = free_ports(len(topology.brokers))
    with contextlib.ExitStack() as stack:
        echo = stack.enter_context(child("motet.experiments.echo", name="the echo"))
        echo_port = int(echo.hear_line())
        shown = {port: port for port in (*ports, echo_port)}
        if delay_s:
            command = ("motet.experiments.delaying", str(delay_s), *map(str, shown))
            hop = stack.enter_context(child(*command, name="the delaying hop"))
            shown = {int(port): through for port, through in hop.hear().items()}
        brokers = []
        for at, place in enumerate(topology.brokers):
            listens = [
                address_of(HOST, port if at == other else shown[port])
                for other, port in enumerate(ports)
            ]
            view = _view(topology, listens, durability)
            file = folder / f"{place.name}.toml"
            file.write_text(view.to_toml(), encoding="utf-8")
            brokers.append(stack.enter_context(_broker(place.name, file, folder)))
        urls = [address_of(HOST, shown[port]) for port in ports]
        _until_whole([address_of(HOST, port) for port in ports])
        load = stack.enter_context(
            child("motet.experiments.dispatch_load", *urls, name="the clients")
        )
        yield Scene(topology, brokers, urls, load, shown[echo_port])


def _view(topology: Topology, listens: Sequence[str], durability: str) -> Topology:
    places = tuple(
        replace(place, listen=listen)
        for place, listen in zip(topology.brokers, listens, strict=True)
    )
    return replace(topology, brokers=places, durability=durability)


@contextlib.contextmanager
def _broker(name: str, file: Path, folder: Path) -> Iterator[Stand]:
    command = ("motet", "broker", "--name", name, "--topology", str(file))
    options = ("--data", str(folder / name), "--while-stdin", "--json")
    with child(*command, *options, name=name) as started:
        heard = started.hear()
        yield Stand(name, heard["address"], started.process.pid)


def _until_whole(addresses: Sequence[str]) -> None:
    """Wait until all links are up."""
    asked = {f"{at}": address for at, address in enumerate(addresses)}
    deadline = time.monotonic() + WHOLE_BOUND_S
    while True:
        found = asyncio.run(ask_all(asked, 1.5))
        links = [
            link["phase"]
            for state in found.values()
            if not isinstance(state, MotetError)
            for link in state["links"].values()
        ]
        answered = not any(isinstance(state, MotetError) for state in found.values())
        if answered and all(phase == "up" for phase in links):
            return
        if time.monotonic() > deadline:
            raise UnavailableError(f"the overlay is not whole within {WHOLE_BOUND_S:g} s")
        time.sleep(0.02)
