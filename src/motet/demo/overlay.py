"""Five brokers on free ports, started as anybody would: by `motet up`.

B1            B4
  ╲          ╱
    B3 ─────        B3 decides transactions
  ╱          ╲
B2            B5
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from motet.audit.recording import VARIABLE
from motet.broker.topology import BrokerPlace, Topology
from motet.client.connecting import connect
from motet.errors import MotetError, UnavailableError

LINKS: Final = {"B1": (), "B2": (), "B3": ("B1", "B2"), "B4": ("B3",), "B5": ("B3",)}
MIDDLE: Final = "B3"
PUBLISHED_AT: Final = ("B1", "B2", "B3")
"""Where the log is published, and Spark reads."""
WRITTEN_AT: Final = "B5"
"""Where Spark writes. It does not read there: what it writes would be news to it."""
START_BOUND_S = 60.0
STOP_BOUND_S = 20.0


class Overlay:
    """`addresses` and `pids` by broker; `pids` as they were at the start."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self.file = Path(ready["topology"])
        self.addresses: dict[str, str] = {b["broker"]: b["address"] for b in ready["brokers"]}
        self.pids: dict[str, int] = {b["broker"]: b["pid"] for b in ready["brokers"]}

    async def status(self, broker: str) -> dict[str, Any] | None:
        """What a broker says of itself; None while it does not answer."""
        try:
            async with connect(self.addresses[broker], connect_timeout=1.0) as operator:
                return await operator.status()
        except MotetError:
            return None

    async def is_back(self, broker: str) -> bool:
        """It answers, is not the process that it was, and has all its links."""
        state = await self.status(broker)
        if state is None or state["process"]["pid"] == self.pids[broker]:
            return False
        return all(link["phase"] == "up" for link in state["links"].values())


@contextlib.asynccontextmanager
async def running(folder: Path, history: Path) -> AsyncIterator[Overlay]:
    """The overlay, until the block ends; its brokers keep all they know in `folder`, and write
    down in `history` what they do."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "demo.toml"
    file.write_text(_on_free_ports().to_toml(), encoding="utf-8")
    command = (sys.executable, "-m", "motet", "up", str(file), "--dir", str(folder), "--json")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=PIPE, env={**os.environ, VARIABLE: str(history)}
    )
    assert process.stdout is not None
    assert process.stderr is not None
    listening = asyncio.create_task(process.stderr.read())  # so that it never fills up
    try:
        line = await _first_line(process.stdout)
        if not line:
            said = (await listening).decode().strip()
            raise UnavailableError(f"the overlay did not start: {said}")
        yield Overlay(json.loads(line))
    finally:
        await _end(process)
        listening.cancel()


async def _first_line(said: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(START_BOUND_S):
            return await said.readline()
    except TimeoutError:
        raise UnavailableError(
            f"the overlay did not start within {START_BOUND_S:g} s: is the machine busy?"
        ) from None


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_BOUND_S):
            await process.wait()
    except TimeoutError:  # whatever it still does, it is not wanted any more
        process.kill()
        await process.wait()


def _on_free_ports() -> Topology:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in LINKS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    places = tuple(
        BrokerPlace(name, f"motet://127.0.0.1:{port}", links)
        for (name, links), port in zip(LINKS.items(), ports, strict=True)
    )
    return Topology("demo", places, heartbeat_s=0.5, root=MIDDLE)
