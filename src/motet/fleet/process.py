"""One broker process: `motet broker` as a child of ours, started, signalled and ended; or one site
of a sequencer, in the same way.

The child holds one end of a pipe to us as its standard input and ends when the pipe does, so it
never outlives us. It is in a process group of its own within our session: Ctrl-C does not reach it,
and if we die while it is paused, the kernel hangs it up and lets it run to its end.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, Popen

from motet.errors import UnavailableError
from motet.runtime.loop import run
from motet.runtime.tcp import address_of

START_LIMIT_S = 120.0
"""A busy machine may take this long to start a broker; one that takes longer hangs."""
SLOW_START_S = 20.0
"""After this time, and then after ever longer ones, a slow start is reported."""
STOP_LIMIT_S = 15.0
POLL_S = 0.02
LOOK_S = 0.25
"""The end of a process is noticed this late at most, even if a process that it has started keeps
its standard output open."""
MISUSE = 2
"""The exit status of a broker that was started with wrong options."""

Notice = Callable[[str], None]


class StartFailed(UnavailableError):
    """A broker process did not start. The text has the broker's own error message."""

    def __init__(self, problem: str, hint: str = "", *, is_misuse: bool = False) -> None:
        super().__init__(problem)
        self.hint = hint
        self.is_misuse = is_misuse
        """Whether the broker ended because its options or its topology file are wrong."""


class BrokerProcess:
    """The current process of one broker. Its log also has the output of earlier processes."""

    command: tuple[str, ...] = ("broker",)
    key = "broker"
    """The key of its name in the line that it prints when it listens."""

    def __init__(
        self,
        name: str,
        options: Sequence[str],
        folder: Path,
        *,
        data: Path | None = None,
        program: Sequence[str] = (),
        preexec: Callable[[], None] | None = None,
    ) -> None:
        """The broker writes its log into `folder` and its state into `data`, by default a folder in
        `folder`. `program` is run instead of `motet`, and `preexec` in the child before that."""
        self.name = name
        self.data = data or folder / name
        self.log = folder / f"{name}.log"
        self.address = ""
        """Where the broker listens; known from its first start on."""
        self.starts = 0
        self.expected = False
        """Whether the process has ended because we ended it."""
        self._options = ("--data", str(self.data), *options)
        self._program = program
        self._preexec = preexec
        self._process: Popen[bytes] | None = None
        self._log_begin = 0
        """Where the log of the current process begins."""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def exit_status(self) -> int | None:
        """The exit status; None while the process runs."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ── start ────────────────────────────────────────────────────────────────────────────

    def spawn(self) -> None:
        """Start the process without waiting until it listens."""
        program = self._program or (sys.executable, "-m", "motet")
        options = ("--name", self.name, "--while-stdin", "--json", *self._options)
        self._close_pipes()
        self.expected = False
        self.starts += 1
        try:
            with self.log.open("ab") as log:
                self._log_begin = log.tell()
                self._process = Popen(
                    (*program, *self.command, *options),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=log,
                    process_group=0,
                    preexec_fn=self._preexec,
                )
        except OSError as problem:  # no descriptors or no processes are left
            raise StartFailed(f"{self.name} cannot be started: {problem}") from None

    async def start(
        self, limit_s: float | None = START_LIMIT_S, notice: Notice | None = None
    ) -> None:
        """Return when the broker listens; raise `StartFailed` if it ends or takes too long.
        `notice` is called if the start is slow."""
        self.spawn()
        try:
            async with asyncio.timeout(limit_s):
                line = await self._first_line(notice)
                with contextlib.suppress(ValueError):
                    told = json.loads(line)
                    if told[self.key] == self.name:
                        self.address = told.get("address", "")
                        return
                await self.ended()
        except TimeoutError:
            self.kill()
            raise StartFailed(
                f"{self.name} did not start within {limit_s:g} s; see {self.log}"
            ) from None
        except BaseException:
            self.kill()
            raise
        problem = self.complaint or f"it ended with {self.ending}; see {self.log}"
        raise StartFailed(
            f"{self.name} did not start: {problem}",
            self._logged("hint"),
            is_misuse=self.exit_status == MISUSE,
        )

    async def _first_line(self, notice: Notice | None) -> bytes:
        """The line that the broker prints when it listens; empty if it ends. The time this takes
        depends on its folder: only an operator can tell a long recovery from a hang."""
        assert self._process is not None
        assert self._process.stdout is not None
        waited_s, limit_s = 0.0, SLOW_START_S
        while not await self._has_output(limit_s - waited_s):
            if notice is not None:
                said = self.said.splitlines()
                notice(
                    f"{self.name} (pid {self.pid}) does not listen after {limit_s:g} s; it may "
                    f"still be reading a long journal. If it hangs, kill it: it will be started "
                    f"again. Its last message: {said[-1] if said else 'none'}"
                )
            waited_s, limit_s = limit_s, 2 * limit_s
        return self._process.stdout.readline()

    async def _has_output(self, limit_s: float) -> bool:
        """Wait until the process prints a line or closes its standard output."""
        assert self._process is not None
        assert self._process.stdout is not None
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        number = self._process.stdout.fileno()
        loop.add_reader(number, readable.set)
        try:
            async with asyncio.timeout(limit_s):
                await readable.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(number)
        return True

    # ── log ──────────────────────────────────────────────────────────────────────────────

    @property
    def said(self) -> str:
        """The log of the current process."""
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace")

    @property
    def complaint(self) -> str:
        """The error message with which the current process ended, if it wrote one."""
        return self._logged("error")

    def _logged(self, kind: str) -> str:
        start = f"{kind}: "
        lines = [line for line in self.said.splitlines() if line.startswith(start)]
        return lines[0].removeprefix(start) if lines else ""

    @property
    def ending(self) -> str:
        """How the process ended: its exit status, or the signal that killed it."""
        status = self.exit_status or 0
        if status >= 0:
            return f"exit status {status}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"

    # ── signals ──────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP, expected=False)

    def resume(self) -> None:
        self.signal(signal.SIGCONT, expected=False)

    def reload(self) -> None:
        """Make the broker read its topology file again."""
        self.signal(signal.SIGHUP, expected=False)

    def signal(self, number: signal.Signals, *, expected: bool = True) -> None:
        if self.running:
            assert self._process is not None
            self.expected = self.expected or expected
            self._process.send_signal(number)

    # ── end ──────────────────────────────────────────────────────────────────────────────

    async def ended(self) -> None:
        while self.running:
            await self._has_output(LOOK_S)
            await asyncio.sleep(POLL_S)

    async def stop(self) -> bool:
        """Ask the process to end; False if it did not end in time and was killed."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self.ended()
        except TimeoutError:
            self.kill()
            await self.ended()
            return False
        return True

    def end(self) -> None:
        """Kill the process and all that it has started, and return when it is gone."""
        if self.running:
            self.expected = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LIMIT_S)
        self._close_pipes()

    def _close_pipes(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


class SiteProcess(BrokerProcess):
    """The current process of one site of a sequencer."""

    command = ("sequencer",)
    key = "site"


class WitnessProcess(BrokerProcess):
    """The current process of a witness."""

    command = ("sequencer", "witness")
    key = "site"


@contextlib.contextmanager
def running(process: BrokerProcess) -> Iterator[BrokerProcess]:
    """Run the process for the duration of the block; for programs without an event loop."""
    try:
        run(process.start())
        yield process
        run(process.stop())
    finally:
        process.end()


# ── ports of this machine ────────────────────────────────────────────────────────────────

HOST = "127.0.0.1"
PORTS = range(10_240, 32_000)
"""Below the ports that the system assigns to outgoing connections. A connection to a broker that is
down could otherwise be assigned the port it dials, and connect to itself."""


def free_ports(count: int) -> list[int]:
    """Ports that are unused now and that no outgoing connection is assigned."""
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


def free_addresses(count: int) -> list[str]:
    return [address_of(HOST, port) for port in free_ports(count)]


# ── the cost of a process ────────────────────────────────────────────────────────────────


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


def cpu_s(pid: int) -> float:
    """CPU seconds, of user and system, that a process has used so far.

    Linux's scheduler counts nanoseconds; the ticks of 10 ms that psutil reports would show in the
    third digit of a short run.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        spent_ns = [int((task / "schedstat").read_text().split()[0]) for task in tasks]
        if sum(spent_ns):
            return sum(spent_ns) / 1e9
    import psutil  # a broker needs none of this

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def rss_bytes(pid: int) -> int:
    """The resident memory of a process."""
    import psutil

    return int(psutil.Process(pid).memory_info().rss)


# ── descendants of this process ──────────────────────────────────────────────────────────

GONE_WITHIN_S = 2.0


def end_descendants() -> None:
    """Kill all descendants and wait for their end. All are halted before the first is killed: a
    running one could start another, or report errors about the others."""
    import psutil

    halted: set[psutil.Process] = set()
    while found := set(psutil.Process().children(recursive=True)) - halted:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        halted |= found
    for process in halted:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(halted, timeout=GONE_WITHIN_S)
