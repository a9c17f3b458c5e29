"""The broker processes of one overlay: started, watched, restarted, stopped.

Every child holds one end of a pipe to us as its standard input and ends when the pipe does, so
no broker outlives this process even if it is killed. Children are in sessions of their own: a
Ctrl-C in the terminal reaches us, and we stop them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path

from motet.broker.topology import BrokerPlace, Topology
from motet.cli.ending import MISUSE, Failure, Misuse
from motet.cli.looking import ask_all, missing_links

LISTEN_BOUND_S = 20.0
LINKS_BOUND_S = 20.0
STOP_BOUND_S = 5.0
POLL_S = 0.05
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
HEALTHY_AFTER_S = 10.0
"""A broker that has lived so long is restarted without delay again."""

MOVE_IT = "--port moves the default overlay; a topology FILE says where each broker listens"

Notice = Callable[[str], None]


class Child:
    """One broker: its current process, and the ones before it."""

    def __init__(self, place: BrokerPlace, topology: Path, log: Path) -> None:
        self.place = place
        self.log = log
        self.restarts = 0
        self.process: Process | None = None
        self._topology = topology

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    async def start(self) -> None:
        """Returns when it listens; raises with the broker's own words if it does not."""
        command = (sys.executable, "-m", "motet", "broker", "--topology", str(self._topology))
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                *command,
                *("--name", self.place.name, "--while-stdin", "--json"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(LISTEN_BOUND_S):
                line = await self.process.stdout.readline()
        except TimeoutError:
            await self.stop()
            raise Failure(f"{self.place.name} did not start within {LISTEN_BOUND_S:g} s") from None
        with contextlib.suppress(ValueError):
            if json.loads(line)["broker"] == self.place.name:
                return
        raise self._refusal(await self.process.wait(), begin)

    def _refusal(self, status: int, begin: int) -> Misuse | Failure:
        with self.log.open("rb") as log:
            log.seek(begin)
            said = log.read().decode(errors="replace").splitlines()
        spoken: dict[str, str] = {}
        for line in said:
            kind, _, text = line.partition(": ")
            spoken.setdefault(kind, text)
        problem = spoken.get("error", f"ended with {_cause(status)}; see {self.log}")
        if status == MISUSE:
            return Misuse(f"{self.place.name}: {problem}", MOVE_IT)
        return Failure(f"{self.place.name}: {problem}", spoken.get("hint", ""))

    async def ended(self) -> str:
        """Wait for the end of the process; says what ended it."""
        assert self.process is not None
        return _cause(await self.process.wait())

    async def stop(self) -> None:
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_BOUND_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class Supervisor:
    def __init__(self, topology: Topology, directory: Path, notice: Notice) -> None:
        self.topology = topology
        self.directory = directory
        self.file = directory / "topology.toml"
        self.children = [
            Child(place, self.file, directory / f"{place.name}.log") for place in topology.brokers
        ]
        self._notice = notice
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def addresses(self) -> dict[str, str]:
        return {place.name: place.listen for place in self.topology.brokers}

    async def start(self) -> None:
        """Returns when every broker listens and every link is up. Leaves nothing if it fails."""
        before = self._write_topology()
        try:
            async with asyncio.TaskGroup() as group:
                for child in self.children:
                    group.create_task(child.start())
            await self._links_up(LINKS_BOUND_S)
        except BaseException as problem:
            await self.stop()
            if before is not None:
                self.file.write_text(before, encoding="utf-8")
            if isinstance(problem, BaseExceptionGroup):
                raise problem.exceptions[0] from None
            raise
        self._watchers = [asyncio.create_task(self._watch(child)) for child in self.children]

    def _write_topology(self) -> str | None:
        """The former file, if there was one: an overlay may run by it that is in our way."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            before = self.file.read_text(encoding="utf-8") if self.file.exists() else None
            self.file.write_text(self.topology.to_toml(), encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise Misuse(f"{self.directory} cannot be written: {problem}", "--dir DIR") from None
        return before

    async def stop(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(child.stop() for child in self.children))

    async def _links_up(self, bound_s: float) -> None:
        deadline = time.monotonic() + bound_s
        while missing := missing_links(await ask_all(self.addresses)):
            if time.monotonic() > deadline:
                raise Failure(f"not all links are up after {bound_s:g} s: {', '.join(missing)}")
            await asyncio.sleep(POLL_S)

    async def _watch(self, child: Child) -> None:
        """Restart one broker whenever it dies, for ever."""
        pause_s = FIRST_PAUSE_S
        while True:
            born = time.monotonic()
            cause = await child.ended()
            if time.monotonic() - born > HEALTHY_AFTER_S:
                pause_s = FIRST_PAUSE_S
            name, pid = child.place.name, child.pid
            self._notice(f"{name} (pid {pid}) died of {cause}; restarting in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            child.restarts += 1
            try:
                await child.start()
                await self._links_up(LINKS_BOUND_S)
            except (Misuse, Failure) as problem:
                self._notice(f"{name} is not well: {problem}")
            else:
                self._notice(f"{name} is back (pid {child.pid}), all links are up")


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
