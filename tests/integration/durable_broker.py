"""A real broker process with a folder of its own, and what can happen to both."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from motet.broker.folder.recovery import JOURNAL, read_durable
from motet.client.channel import ask
from motet.errors import UnavailableError
from motet.fleet.process import BrokerProcess, free_addresses
from tests.waiting import PATIENCE_S, eventually

MOTET = (sys.executable, "-m", "motet")

NEXT_RELEASE = """
import sys
from motet.broker.core import records
from motet.cli.main import main
if sys.argv.pop(1) == "migrates":
    records.MIGRATIONS[records.MACHINE_VERSION] = lambda parts: parts
for module in list(sys.modules.values()):
    if hasattr(module, "MACHINE_VERSION"):
        module.MACHINE_VERSION += 1
main()
"""
"""The program of a release whose facts mean something else; it can read older snapshots, or not."""


class DurableBroker(BrokerProcess):
    """`async with` starts it, and leaves no process behind."""

    def __init__(
        self,
        directory: Path,
        name: str = "B1",
        *options: str,
        command: Sequence[str] = MOTET,
        cannot_write: bool = False,
    ) -> None:
        (address,) = free_addresses(1)
        super().__init__(
            name,
            options,
            directory,
            program=command,
            preexec=give_up_overriding if cannot_write else None,
        )
        self.address = address
        self.options = options

    def spawn(self) -> None:
        self._options = ("--data", str(self.data), "--listen", self.address, *self.options)
        super().spawn()

    async def __aenter__(self) -> DurableBroker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    # ── life ─────────────────────────────────────────────────────────────────────────────

    async def end_seen(self) -> tuple[int, str]:
        """Wait for its end; the exit status, and what it wrote to standard error."""
        async with asyncio.timeout(PATIENCE_S):
            await self.ended()
        assert self.exit_status is not None
        return self.exit_status, self.said

    async def refused(self) -> tuple[int, str]:
        """Start it, and see that it does not want to; its status, and what it complains of."""
        self.spawn()
        try:
            status, said = await self.end_seen()
        finally:
            self.kill()
        lines = said.splitlines(keepends=True)
        return status, "".join(line for line in lines if " INFO " not in line)

    async def stop(self) -> bool:
        assert await super().stop()
        assert self.exit_status == 0, self.said
        return True

    def kill(self, *, alone: bool = False) -> None:
        """SIGKILL, to it and, unless it dies alone, to what it has started."""
        if alone and self._process is not None:
            super().kill()
            self._process.wait(PATIENCE_S)
        self.end()

    # ── faults ───────────────────────────────────────────────────────────────────────────

    def let_no_file_grow_beyond(self, size_bytes: int) -> None:
        """To the broker it looks like a full disk."""
        limits = (size_bytes, size_bytes)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, limits)

    # ── looking ──────────────────────────────────────────────────────────────────────────

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

        await eventually(up)

    def wanted(self) -> set[str]:
        """The filters of the subscriptions that its folder holds, whether it runs or not."""
        durable, _ = read_durable(self.data)
        return {str(entry.filter) for entry in durable.routing.state.subscriptions}


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
