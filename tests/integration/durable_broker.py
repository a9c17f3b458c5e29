"""A real broker process with a folder of its own, and what can happen to both."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from motet.broker.recovery import JOURNAL, read_durable
from motet.chaos.fleet import free_ports
from motet.cli.looking import ask
from motet.errors import UnavailableError

SOON_S = 30.0
POLL_S = 0.01
MOTET = (sys.executable, "-m", "motet")

NEXT_RELEASE = """
import sys
from motet.broker import records
from motet.cli.main import main
if sys.argv.pop(1) == "migrates":
    records.MIGRATIONS[records.MACHINE_VERSION] = lambda parts: parts
for module in list(sys.modules.values()):
    if hasattr(module, "MACHINE_VERSION"):
        module.MACHINE_VERSION += 1
main()
"""
"""The program of a release whose facts mean something else; it can read older snapshots, or not."""


class DurableBroker:
    """`async with` starts it, and leaves no process behind."""

    def __init__(
        self,
        directory: Path,
        name: str = "B1",
        *options: str,
        command: Sequence[str] = MOTET,
        cannot_write: bool = False,
    ) -> None:
        self.data = directory / name
        self.name = name
        (port,) = free_ports(1)
        self.address = f"motet://127.0.0.1:{port}"
        self.options = options
        self.command = command
        self._errors = directory / f"{name}.stderr"
        self._before = give_up_overriding if cannot_write else None
        self._process: Popen[bytes] | None = None

    async def __aenter__(self) -> DurableBroker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def spawn(self) -> Popen[bytes]:
        """Begin, without waiting for anything."""
        with self._errors.open("wb") as errors:
            self._process = Popen(
                (
                    *(*self.command, "broker", "--name", self.name, "--listen", self.address),
                    *("--data", str(self.data), "--json", *self.options),
                ),
                stdin=subprocess.DEVNULL,
                stdout=PIPE,
                stderr=errors,
                process_group=0,
                preexec_fn=self._before,
            )
        return self._process

    async def start(self) -> None:
        """Returns when it listens."""
        process = self.spawn()
        assert process.stdout is not None
        async with asyncio.timeout(SOON_S):
            line = await asyncio.to_thread(process.stdout.readline)
        assert line, self.said
        assert json.loads(line)["address"] == self.address

    async def ended(self) -> tuple[int, str]:
        """Wait for its end; the exit status, and what it wrote to standard error."""
        assert self._process is not None
        status = await asyncio.to_thread(self._process.wait, SOON_S)
        self._close()
        return status, self.said

    async def refused(self) -> tuple[int, str]:
        """Start it, and see that it does not want to; its status, and what it complains of."""
        self.spawn()
        try:
            status, said = await self.ended()
        finally:
            self.kill()
        lines = said.splitlines(keepends=True)
        return status, "".join(line for line in lines if " INFO " not in line)

    async def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert await self.ended() == (0, self.said)

    def kill(self, *, alone: bool = False) -> None:
        """SIGKILL, to it and, unless it dies alone, to what it has started."""
        process = self._process
        if process is not None and process.poll() is None:
            (os.kill if alone else os.killpg)(process.pid, signal.SIGKILL)
            process.wait(SOON_S)
        self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    # ── faults ───────────────────────────────────────────────────────────────────────────

    def let_no_file_grow_beyond(self, size_bytes: int) -> None:
        """To the broker it looks like a full disk."""
        limits = (size_bytes, size_bytes)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, limits)

    # ── looking ──────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """On standard error, since it was started last."""
        return self._errors.read_text()

    @property
    def segments(self) -> list[Path]:
        return sorted((self.data / JOURNAL).glob("*.log"))

    @property
    def snapshots(self) -> list[Path]:
        return sorted(self.data.glob("*.snapshot"))

    async def status(self) -> dict[str, Any]:
        answer = await ask(self.address)
        assert isinstance(answer, dict)
        return answer

    async def links_up(self) -> None:
        async def up() -> bool:
            try:
                links = (await self.status())["links"].values()
            except UnavailableError:
                return False
            return all(link["phase"] == "up" for link in links)

        await eventually_so(up)

    def wanted(self) -> set[str]:
        """The filters of the subscriptions that its folder holds, whether it runs or not."""
        durable, _ = read_durable(self.data)
        return {str(entry.filter) for entry in durable.routing.state.subscriptions}


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while not true():
            await asyncio.sleep(POLL_S)


async def eventually_so(true: Callable[[], Any]) -> None:
    """`eventually`, for a condition that must itself be awaited."""
    async with asyncio.timeout(SOON_S):
        while not await true():
            await asyncio.sleep(POLL_S)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(POLL_S)


def flip(path: Path, offset: int) -> None:
    """One bit; a negative offset counts from the end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def give_up_overriding() -> None:
    """Permissions count for everybody but root, unless root gives that up before it begins."""
    drop_from_bounding_set, dac_override, dac_read_search = 24, 1, 2
    prctl = ctypes.CDLL(None).prctl
    for capability in (dac_override, dac_read_search):
        prctl(drop_from_bounding_set, capability, 0, 0, 0)
