"""Three brokers on free ports, started as anybody would: by `motet up`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from motet.broker.topology import BrokerPlace, Topology
from motet.client.connecting import connect
from motet.errors import MotetError, UnavailableError

NAMES = ("B1", "B2", "B3")
START_BOUND_S = 30.0
STOP_BOUND_S = 10.0


class Overlay:
    """`addresses` and `pids` by broker; `pids` as they were at the start."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self.addresses: dict[str, str] = {b["broker"]: b["address"] for b in ready["brokers"]}
        self.pids: dict[str, int] = {b["broker"]: b["pid"] for b in ready["brokers"]}

    async def status(self, broker: str) -> dict[str, Any] | None:
        """What a broker says of itself; None while it does not answer."""
        try:
            async with connect(self.addresses[broker], connect_timeout=1.0) as operator:
                return await operator.status()
        except MotetError:
            return None

    async def is_whole(self) -> bool:
        """Every broker answers, and every link is up on both sides."""
        for broker in self.addresses:
            state = await self.status(broker)
            if state is None or any(link["phase"] != "up" for link in state["links"].values()):
                return False
        return True


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Overlay]:
    """The overlay, until the block ends; nothing is left of it then."""
    with TemporaryDirectory(prefix="motet-demo-") as directory:
        file = Path(directory) / "demo.toml"
        file.write_text(_line_on_free_ports().to_toml(), encoding="utf-8")
        command = (sys.executable, "-m", "motet", "up", str(file), "--dir", directory, "--json")
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(START_BOUND_S):
                line = await process.stdout.readline()
            if not line:
                said = (await process.stderr.read()).decode().strip()
                raise UnavailableError(f"the overlay did not start: {said}")
            listening = asyncio.create_task(process.stderr.read())  # so that it never fills up
            yield Overlay(json.loads(line))
            listening.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            async with asyncio.timeout(STOP_BOUND_S):
                await process.wait()


def _line_on_free_ports() -> Topology:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in NAMES]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    places = tuple(
        BrokerPlace(name, f"motet://127.0.0.1:{port}", NAMES[i - 1 : i] if i else ())
        for i, (name, port) in enumerate(zip(NAMES, ports, strict=True))
    )
    return Topology("demo", places, heartbeat_s=0.5)
