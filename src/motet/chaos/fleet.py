"""The broker processes of one run: started, killed, paused, stopped.

Every child holds one end of a pipe to us as its standard input and ends when the pipe does. It
is in a process group of its own within our session: Ctrl-C does not reach it, and if we die
while it is paused, the kernel hangs it up and lets it run to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, Popen

from motet.chaos.proxy import HOST
from motet.errors import UnavailableError

LISTEN_BOUND_S = 30.0
STOP_BOUND_S = 15.0
POLL_S = 0.02
PORTS = range(10_240, 32_000)
"""Below those that the system gives to outgoing connections: one of these, dialling a broker
that is down, could be given the very port it dials, and would talk to itself."""


class BrokerProcess:
    def __init__(
        self,
        name: str,
        port: int,
        options: Sequence[str],
        directory: Path,
        *,
        topology: Path | None = None,
    ) -> None:
        """With `topology`, that file says where it listens and whom it dials."""
        self.name = name
        self.port = port
        self.data = directory / name
        self.log = directory / f"{name}.log"
        self.starts = 0
        self.expected = False
        """Whether its end, if it has ended, was our doing."""
        self._options = [*options]
        self._options += (
            ["--listen", self.address] if topology is None else ["--topology", str(topology)]
        )
        self._process: Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"motet://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ── life ─────────────────────────────────────────────────────────────────────────────

    def spawn(self) -> None:
        """Start it, without waiting for anything."""
        command = (sys.executable, "-m", "motet", "broker", "--name", self.name)
        self.expected = False
        self.starts += 1
        self._release()
        with self.log.open("ab") as log:
            self._process = Popen(
                (*command, *self._options, "--while-stdin", "--json"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                process_group=0,
            )

    async def start(self) -> None:
        """Returns when it listens; raises with its own words if it does not."""
        self.spawn()
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(LISTEN_BOUND_S):
                line = await asyncio.to_thread(process.stdout.readline)
        except BaseException as problem:
            self.kill()
            if isinstance(problem, TimeoutError):
                raise UnavailableError(
                    f"{self.name} did not start within {LISTEN_BOUND_S:g} s; see {self.log}"
                ) from None
            raise
        with contextlib.suppress(ValueError):
            if json.loads(line)["broker"] == self.name:
                return
        await self.ended()
        raise UnavailableError(f"{self.name} did not start: {self._last_words()}")

    def _last_words(self) -> str:
        said = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in said if line.startswith("error: ")]
        return errors[-1] if errors else f"it ended with status {self.status}; see {self.log}"

    async def ended(self) -> None:
        while self.running:
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """Ask it to end, and see that it does."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_BOUND_S):
                await self.ended()
        except TimeoutError:
            self.kill()
            await self.ended()
            raise UnavailableError(
                f"{self.name} did not stop within {STOP_BOUND_S:g} s; see {self.log}"
            ) from None

    # ── faults ───────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP, expected=False)

    def resume(self) -> None:
        self.signal(signal.SIGCONT, expected=False)

    def signal(self, number: signal.Signals, *, expected: bool = True) -> None:
        if self.running:
            assert self._process is not None
            self.expected = self.expected or expected
            self._process.send_signal(number)

    def _release(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    def end(self) -> None:
        """At once, whatever it does, and leave nothing of it, nor of what it has started."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_BOUND_S)
        self._release()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, and that no outgoing connection will be given."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(PORTS, len(PORTS)):
            if len(found) == count:
                break
            candidate = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                candidate.bind((HOST, port))
                found.append(port)
    if len(found) < count:
        raise UnavailableError(f"no {count} free ports from {PORTS.start} to {PORTS.stop - 1}")
    return found
