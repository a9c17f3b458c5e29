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
from collections.abc import Callable, Iterable
from pathlib import Path

from motet.broker.recovery import read_durable
from motet.broker.topology import BrokerPlace, Topology
from motet.cli.changes import Change, change_between
from motet.cli.ending import MISUSE, Failure, Misuse
from motet.cli.looking import ask, ask_all, missing_links, unsettled_links
from motet.cli.traces import TOPOLOGY, Traces
from motet.errors import MotetError
from motet.runtime.journal import VOLATILE

PATIENCE_S = 20.0
"""A broker reads its folder before it listens; with millions of entries that takes its time. It
is never ended for that, but after so long, and then ever more rarely, it is spoken of."""
LINKS_BOUND_S = 20.0
STOP_BOUND_S = 5.0
POLL_S = 0.05
FIRST_PAUSE_S = 0.1
SHOWN = 5
LONGEST_PAUSE_S = 5.0
HEALTHY_AFTER_S = 10.0
"""A broker that has lived so long is restarted without delay again."""

MOVE_IT = "--port moves the default overlay; a topology FILE says where each broker listens"

Notice = Callable[[str], None]


class Child:
    """One broker: its current process, and the ones before it."""

    def __init__(self, place: BrokerPlace, topology: Path, log: Path, notice: Notice) -> None:
        self.place = place
        self.log = log
        self._notice = notice
        self.data = log.with_suffix("")
        self.restarts = 0
        self.process: Process | None = None
        self._topology = topology
        self._log_begin = 0
        """Where the words of the current process begin in the log."""

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    async def start(self) -> None:
        """Returns when it listens; raises with the broker's own words if it ends before."""
        command = (sys.executable, "-m", "motet", "broker", "--topology", str(self._topology))
        try:
            with self.log.open("ab") as log:
                self._log_begin = log.tell()
                self.process = await asyncio.create_subprocess_exec(
                    *command,
                    *("--name", self.place.name, "--while-stdin", "--json"),
                    *("--data", str(self.data)),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as problem:  # no descriptors or no processes are left
            raise Failure(f"{self.place.name} cannot be started: {problem}") from None
        line = await self._first_line(self.process)
        with contextlib.suppress(ValueError):
            if json.loads(line)["broker"] == self.place.name:
                return
        raise self._refusal(await self.process.wait())

    async def _first_line(self, process: Process) -> bytes:
        """What it says when it listens; nothing if it ends. How long that may take depends on
        its folder, so only an operator can tell a long recovery from a hang."""
        assert process.stdout is not None
        waited_s, bound_s = 0.0, PATIENCE_S
        while True:
            try:
                async with asyncio.timeout(bound_s - waited_s):
                    return await process.stdout.readline()
            except TimeoutError:
                self._notice(
                    f"{self.place.name} (pid {process.pid}) does not listen after {bound_s:g} s; "
                    f"a long journal takes long to read, so it is left to go on. If you think "
                    f"that it hangs, end it, and it is started again. It said last: "
                    f"{self._last_line() or 'nothing'}"
                )
                waited_s, bound_s = bound_s, 2 * bound_s

    def _refusal(self, status: int) -> Misuse | Failure:
        spoken = self._spoken()
        problem = spoken.get("error", f"ended with {_cause(status)}; see {self.log}")
        if status == MISUSE:
            return Misuse(f"{self.place.name}: {problem}", MOVE_IT if "hint" in spoken else "")
        return Failure(f"{self.place.name}: {problem}", spoken.get("hint", ""))

    def _said(self) -> list[str]:
        """The lines of the current process in its log."""
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace").splitlines()

    def _last_line(self) -> str:
        said = self._said()
        return said[-1] if said else ""

    def _spoken(self) -> dict[str, str]:
        """What the current process has said, by the word that its lines begin with."""
        spoken: dict[str, str] = {}
        for line in self._said():
            kind, _, text = line.partition(": ")
            spoken.setdefault(kind, text)
        return spoken

    @property
    def complaint(self) -> str:
        """Why it has ended, in its own words, if it had any."""
        return self._spoken().get("error", "")

    def hang_up(self) -> None:
        """Let it read its topology again."""
        try:
            assert self.process is not None
            self.process.send_signal(signal.SIGHUP)
        except ProcessLookupError:
            raise Failure(f"{self.place.name} is not running") from None

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
    """The overlay as a whole. Changes come one at a time."""

    def __init__(self, topology: Topology, directory: Path, notice: Notice) -> None:
        self.topology = topology
        self.directory = directory
        self.file = directory / TOPOLOGY
        self._notice = notice
        self._children = {place.name: self._child(place) for place in topology.processes}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    def _child(self, place: BrokerPlace) -> Child:
        return Child(place, self.file, self.directory / f"{place.name}.log", self._notice)

    @property
    def children(self) -> list[Child]:
        return list(self._children.values())

    @property
    def addresses(self) -> dict[str, str]:
        return {place.name: place.listen for place in self.topology.processes}

    async def start(self) -> None:
        """Returns when every broker listens and every link is up. Leaves nothing if it fails."""
        before = self._write_topology()
        try:
            await self._start_all(self.children)
            await self._links_up(LINKS_BOUND_S)
        except BaseException:
            await self.stop()
            if before is not None:
                self.file.write_text(before, encoding="utf-8")
            raise
        for child in self.children:
            self._begin_watch(child)

    async def _start_all(self, children: Iterable[Child]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for child in children:
                    group.create_task(child.start())
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None

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
        for name in list(self._watchers):
            await self._end_watch(name)
        await asyncio.gather(*(child.stop() for child in self.children))

    async def _links_up(self, bound_s: float) -> None:
        deadline = time.monotonic() + bound_s
        while missing := missing_links(await ask_all(self.addresses)):
            if time.monotonic() > deadline:
                raise Failure(f"not all links are up after {bound_s:g} s: {', '.join(missing)}")
            await asyncio.sleep(POLL_S)

    # ── watching ─────────────────────────────────────────────────────────────────────────

    def _begin_watch(self, child: Child) -> None:
        self._watchers[child.place.name] = asyncio.create_task(self._watch(child))

    async def _end_watch(self, name: str) -> None:
        watcher = self._watchers.pop(name, None)
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _watch(self, child: Child) -> None:
        """Restart one broker whenever it dies, for ever: somebody may have seen to what ails it.
        What it complains of is told once."""
        pause_s, told = FIRST_PAUSE_S, ""
        while True:
            born = time.monotonic()
            cause = await child.ended()
            if time.monotonic() - born > HEALTHY_AFTER_S:
                pause_s = FIRST_PAUSE_S
            name, pid, complaint = child.place.name, child.pid, child.complaint
            if not complaint or complaint != told:
                why = f"{cause}: {complaint}" if complaint else cause
                self._notice(f"{name} (pid {pid}) died of {why}; restarting in {pause_s:g} s")
            told = complaint
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            child.restarts += 1
            try:
                await child.start()
                await self._links_up(LINKS_BOUND_S)
            except (Misuse, Failure) as problem:
                complaint = child.complaint
                if not complaint or complaint != told:
                    often = f"it is tried again every {LONGEST_PAUSE_S:g} s or sooner"
                    self._notice(f"{name} is not well: {problem}; {often}")
                told = complaint
            else:
                self._notice(f"{name} is back (pid {child.pid}), all links are up")

    # ── changing ─────────────────────────────────────────────────────────────────────────

    async def restart_each(self) -> None:
        """One broker after the other; the next one when all links are up again. What waits on
        them need not arrive before: a broker that keeps a journal comes back with it."""
        for child in self.children:
            await self._end_watch(child.place.name)
            try:
                await child.stop()
                await child.start()
            finally:
                self._begin_watch(child)
            self._notice(f"{child.place.name} is restarted (pid {child.pid})")
            if self.topology.durability == VOLATILE:
                await self._quiet(self.addresses)
            else:
                await self._links_up(LINKS_BOUND_S)

    async def become(self, new: Topology) -> None:
        """Change the running overlay. What is refused leaves everything as it was."""
        old = self.topology
        change = change_between(old, new)
        leaving = [self._children[name] for name in change.removed]
        await self._must_be_empty(leaving)
        traces = Traces(self.directory, change.added)
        try:
            for child in leaving:
                await self._retire(child)
            self.topology = new
            self._write_topology()
            await self._add(change.added)
            await self._inform(change.informed)
            await self._move(change.moved)
        except BaseException as problem:
            await self._go_back(old, change)
            if isinstance(problem, MotetError) and change.added:
                traces.remove(problem)
            raise
        for name in change.removed:
            del self._children[name]
        await self._links_up(LINKS_BOUND_S)

    async def _must_be_empty(self, leaving: list[Child]) -> None:
        answers = await ask_all({child.place.name: child.place.listen for child in leaving})
        for name, answer in answers.items():
            if isinstance(answer, MotetError):
                raise Failure(f"{name} cannot be removed: {answer}")
            if answer["session_count"]:
                count = answer["session_count"]
                shown = ", ".join(sorted(answer["sessions"])[:SHOWN])
                raise Misuse(
                    f"{name} still has {count} client{'s' * (count > 1)}: {shown}",
                    "disconnect them, or let their leases run out, and try again",
                )
        if leaving:
            await self._quiet({child.place.name: child.place.listen for child in leaving})

    async def _quiet(self, addresses: dict[str, str]) -> None:
        """All links of these brokers are up, and nothing on them is unacknowledged."""
        deadline = time.monotonic() + LINKS_BOUND_S
        while waiting := unsettled_links(await ask_all(addresses)):
            if time.monotonic() > deadline:
                raise Failure(f"not at rest after {LINKS_BOUND_S:g} s: {', '.join(waiting)}")
            await asyncio.sleep(POLL_S)

    async def _retire(self, child: Child) -> None:
        """Stop for good, unless a client has come in the last moment."""
        await self._end_watch(child.place.name)
        await child.stop()
        if child.data.exists():
            sessions = [session.client for session in read_durable(child.data)[0].sessions]
            if sessions:
                shown = ", ".join(sorted(sessions)[:SHOWN])
                raise Misuse(f"{child.place.name} still has clients: {shown}", "try again")

    async def _add(self, names: Iterable[str]) -> None:
        added = [self._child(self.topology.place(name)) for name in names]
        self._children |= {child.place.name: child for child in added}
        await self._start_all(added)
        for child in added:
            self._begin_watch(child)

    async def _inform(self, names: Iterable[str]) -> None:
        """Let brokers read the topology again, and hear what they say to it."""
        for name in names:
            child = self._children[name]
            answer = await ask(child.place.listen)
            before = answer["process"]["reloads"]
            child.hang_up()
            deadline = time.monotonic() + LINKS_BOUND_S
            while (process := (await ask(child.place.listen))["process"])["reloads"] == before:
                if time.monotonic() > deadline:
                    raise Failure(f"{name} did not read the topology again")
                await asyncio.sleep(POLL_S)
            if process["reload_error"]:
                raise Misuse(f"{name}: {process['reload_error']}")

    async def _move(self, names: Iterable[str]) -> None:
        for name in names:
            child = self._children[name]
            await self._end_watch(name)
            try:
                await child.stop()
                child.place = self.topology.place(name)
                await child.start()
            finally:
                self._begin_watch(child)

    async def _go_back(self, old: Topology, change: Change) -> None:
        """A change was refused half-way: everybody takes up the former topology again."""
        for name in change.added:
            child = self._children.pop(name, None)
            await self._end_watch(name)
            if child is not None:
                await child.stop()
        self.topology = old
        self._write_topology()
        for name in change.removed:
            child = self._children[name]
            if name not in self._watchers:
                await self._take_back(child)
        back = [name for name in change.moved if self._children[name].place != old.place(name)]
        try:
            await self._inform(change.informed)
            await self._move(back)
            await self._links_up(LINKS_BOUND_S)
        except MotetError as problem:
            self._notice(f"not all of the overlay is back as it was: {problem}")

    async def _take_back(self, child: Child) -> None:
        """Start one that was retired. If it does not want to, the others still go back, and the
        watch tries again: to it, this one has just died."""
        try:
            await child.start()
        except MotetError as problem:
            self._notice(f"{child.place.name} is not back yet: {problem}")
        self._begin_watch(child)


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"
