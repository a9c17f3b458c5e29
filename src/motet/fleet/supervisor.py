"""An overlay that is kept running: brokers that die are restarted, and the topology may change.

Brokers are added and removed at the leaves. Links between brokers that stay cannot change: while
only one of the two brokers knew of the change, the overlay would be two trees, or none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from motet.broker.folder.journal import VOLATILE
from motet.broker.folder.recovery import read_durable
from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.client.channel import Answer, ask, ask_all
from motet.errors import MisuseError, MotetError, TopologyError, UnavailableError
from motet.fleet.fleet import LINKS_LIMIT_S, POLL_S, Fleet, missing_links, unsettled_links
from motet.fleet.process import BrokerProcess, Notice
from motet.fleet.run_folder import Leftovers, unwritable
from motet.protocol.config import SETTLED

# ── the steps from one topology to another ───────────────────────────────────────────────


class OverlayChange(NamedTuple):
    """The brokers concerned, each list in the order in which its step is done."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    moved: tuple[str, ...]
    """Brokers that stay but listen at another address, and are restarted for that."""
    informed: tuple[str, ...]
    """Brokers that stay and read the topology again: their neighbours changed, or an address."""


def change_between(old: Topology, new: Topology) -> OverlayChange:
    """Raises `TopologyError` if a running overlay cannot make this change."""
    for setting in SETTLED:
        before, after = getattr(old, setting), getattr(new, setting)
        if before != after:
            raise TopologyError(
                f"{new.source}: overlay.{setting}: is {before!r} in the running overlay and cannot "
                f"become {after!r}; stop the overlay and start it again"
            )
    if _mates(old) != _mates(new):
        raise TopologyError(
            f"{new.source}: mates cannot change while the overlay runs; stop it and start it again"
        )
    staying = [name for name in old.names if name in new.names]
    if not staying:
        raise TopologyError(f"{new.source}: brokers: none of them is running; start it by itself")
    removed = _outermost_first(old, set(old.names) - set(staying), new.source, "removed")
    added = _outermost_first(new, set(new.names) - set(staying), new.source, "added")
    _check_links(old, new, staying)
    moved = tuple(name for name in staying if old.place(name).listen != new.place(name).listen)
    informed = tuple(
        name for name in staying if name not in moved and _place(old, name) != _place(new, name)
    )
    return OverlayChange(removed, added[::-1], moved, informed)


def _mates(topology: Topology) -> dict[str, tuple[tuple[str, str], ...]]:
    return {place.name: place.mates for place in topology.brokers if place.mates}


def _place(topology: Topology, name: str) -> tuple[frozenset[str], dict[str, str]]:
    """The neighbours of a broker, and the addresses that it dials."""
    return frozenset(topology.neighbours(name)), dict(topology.wiring(name).dial)


def _outermost_first(
    topology: Topology, going: set[str], source: str, verb: str
) -> tuple[str, ...]:
    """Remove brokers from a tree, each when it is a leaf."""
    near = {name: set(topology.neighbours(name)) for name in topology.names}
    order: list[str] = []
    while leaves := [name for name in topology.names if name in going and len(near[name]) <= 1]:
        for leaf in leaves:
            going.discard(leaf)
            order.append(leaf)
            for other in near.pop(leaf):
                near[other].discard(leaf)
    if going:
        name = next(name for name in topology.names if name in going)
        others = " and ".join(other for other in topology.names if other in near[name])
        raise TopologyError(
            f"{source}: brokers.{name}: cannot be {verb} while the overlay runs: it is not a "
            f"leaf, {others} are linked through it"
        )
    return tuple(order)


def _check_links(old: Topology, new: Topology, staying: list[str]) -> None:
    before, after = (
        {frozenset(edge) for edge in topology.edges if set(edge) <= set(staying)}
        for topology in (old, new)
    )
    for edge in [*old.edges, *new.edges]:
        if frozenset(edge) in before ^ after:
            what = "gone" if frozenset(edge) in before else "new"
            raise TopologyError(
                f"{new.source}: the link {edge[0]}–{edge[1]} is {what}, but both brokers stay; "
                "only links of brokers that are added or removed can change while the overlay runs"
            )


# ── the supervisor ───────────────────────────────────────────────────────────────────────

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
HEALTHY_AFTER_S = 10.0
"""A broker that has run for this long is restarted without delay again."""
SHOWN = 5


class StillInUse(MisuseError):
    """A broker that has clients cannot be removed."""

    def __init__(self, broker: str, clients: Iterable[str], count: int) -> None:
        shown = ", ".join(sorted(clients)[:SHOWN])
        super().__init__(f"{broker} still has {count} client{'s' * (count > 1)}: {shown}")
        self.hint = "disconnect them, or wait until their leases have expired, and try again"


class Supervisor:
    """The brokers of one overlay. Call one method at a time."""

    def __init__(
        self, topology: Topology, directory: Path, notice: Notice, options: Sequence[str] = ()
    ) -> None:
        self.fleet = Fleet(topology, directory, options=options)
        self._notice = notice
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._places: dict[str, BrokerPlace] = {}
        """Where each broker was last told to listen."""
        self._place(topology.names)

    def _place(self, names: Iterable[str]) -> None:
        self._places |= {name: self.fleet.topology.place(name) for name in names}

    async def start(self) -> None:
        """Return when every broker listens and every link is up. If that fails, everything is
        stopped, and the topology file is restored."""
        before = self._topology_file()
        try:
            await self._start(self.fleet.processes)
            await self.fleet.until_links_up()
        except BaseException:
            await self.stop()
            if before is not None:
                self.fleet.file.write_text(before, encoding="utf-8")
            raise
        for name in self.fleet.processes:
            self._begin_watch(name)

    async def _start(self, names: Iterable[str]) -> None:
        """Without a time limit: a broker with a long journal may take long."""
        await self.fleet.start_all(names, limit_s=None, notice=self._notice)

    def _topology_file(self) -> str | None:
        """Write the topology file; returns the one of an earlier overlay, or of a running one whose
        ports we try to take."""
        file = self.fleet.file
        try:
            before = file.read_text(encoding="utf-8") if file.exists() else None
            self.fleet.write_topology()
        except (OSError, UnicodeDecodeError) as problem:
            raise unwritable(self.fleet.directory, problem) from None
        return before

    async def stop(self) -> None:
        for name in list(self._watchers):
            await self._end_watch(name)
        await self.fleet.stop()

    # ── watching ─────────────────────────────────────────────────────────────────────────

    def _begin_watch(self, name: str) -> None:
        self._watchers[name] = asyncio.create_task(self._watch(self.fleet.processes[name]))

    async def _end_watch(self, name: str) -> None:
        watcher = self._watchers.pop(name, None)
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _watch(self, process: BrokerProcess) -> None:
        """Restart a broker whenever it ends, without limit, because an operator may repair the
        cause. The same error message is reported once."""
        name, pause_s, told = process.name, FIRST_PAUSE_S, ""
        began = time.monotonic()
        while True:
            await process.ended()
            if time.monotonic() - began > HEALTHY_AFTER_S:
                pause_s = FIRST_PAUSE_S
            complaint = process.complaint
            if not complaint or complaint != told:
                why = f"{process.ending}: {complaint}" if complaint else process.ending
                pid = process.pid
                self._notice(f"{name} (pid {pid}) died of {why}; restarting in {pause_s:g} s")
            told = complaint
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            try:
                await process.start(None, self._notice)
            except MotetError as problem:
                complaint = process.complaint
                if not complaint or complaint != told:
                    often = f"restarting it every {LONGEST_PAUSE_S:g} s or sooner"
                    self._notice(f"{name} is not well: {problem}; {often}")
                told = complaint
            began = time.monotonic()
            if process.running:
                await self._until_linked_or_ended(process)

    async def _until_linked_or_ended(self, process: BrokerProcess) -> None:
        """Report that all links are up, unless the process ends first. That may be the reason why
        they do not come up: other watchers wait for the links of this broker, too."""
        name, pid = process.name, process.pid
        linked = asyncio.create_task(self._until_links_up())
        ended = asyncio.create_task(process.ended())
        try:
            await asyncio.wait({linked, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                linked.result()
                self._notice(f"{name} is back (pid {pid}), all links are up")
        except MotetError as problem:
            self._notice(f"{name} is not well (pid {pid}): {problem}")
        finally:
            linked.cancel()
            ended.cancel()
            await asyncio.gather(linked, ended, return_exceptions=True)

    # ── waiting ──────────────────────────────────────────────────────────────────────────

    async def _until_links_up(self) -> None:
        """A broker that has ended is no error here: its watcher restarts it."""
        await _until(missing_links, self.fleet.addresses, "not all links are up")

    async def _until_quiet(self, addresses: Mapping[str, str]) -> None:
        """All links of these brokers are up, and every message on them is acknowledged."""
        await _until(unsettled_links, addresses, "not at rest")

    # ── changing ─────────────────────────────────────────────────────────────────────────

    async def restart_each(self, names: Sequence[str] = ()) -> None:
        """Restart these brokers, by default all, one after the other, the next one when all links
        are up again. A broker with a journal restores its unsent messages; volatile ones must have
        sent theirs before."""
        for name in names:
            if name not in self.fleet.processes:
                raise MisuseError(f"there is no broker {name!r}")
        for name in names or tuple(self.fleet.processes):
            process = self.fleet.processes[name]
            await self._restart(name)
            self._notice(f"{name} is restarted (pid {process.pid})")
            if self.fleet.topology.durability == VOLATILE:
                await self._until_quiet(self.fleet.addresses)
            else:
                await self._until_links_up()

    async def _restart(self, name: str) -> None:
        process = self.fleet.processes[name]
        await self._end_watch(name)
        try:
            await process.stop()
            await process.start(None, self._notice)
        finally:
            self._begin_watch(name)

    async def become(self, new: Topology) -> None:
        """Change the running overlay. If that is refused, everything stays as it was."""
        fleet, old = self.fleet, self.fleet.topology
        change = change_between(old, new)
        await self._must_be_empty(change.removed)
        leftovers = Leftovers(fleet.directory, change.added)
        try:
            for name in change.removed:
                await self._retire(name)
            fleet.topology = new
            fleet.write_topology()
            await self._add(change.added)
            await self._inform(change.informed)
            await self._move(change.moved)
        except BaseException as problem:
            await self._go_back(old, change)
            if isinstance(problem, MotetError) and change.added:
                leftovers.remove(problem)
            raise
        for name in change.removed:
            del fleet.processes[name]
        await self._until_links_up()

    async def _must_be_empty(self, names: Sequence[str]) -> None:
        addresses = {name: self.fleet.addresses[name] for name in names}
        for name, answer in (await ask_all(addresses)).items():
            if isinstance(answer, MotetError):
                raise UnavailableError(f"{name} cannot be removed: {answer}")
            if count := answer["session_count"]:
                raise StillInUse(name, answer["sessions"], count)
        if names:
            await self._until_quiet(addresses)

    async def _retire(self, name: str) -> None:
        """Stop a broker, unless a client has connected meanwhile."""
        await self._end_watch(name)
        process = self.fleet.processes[name]
        await process.stop()
        if process.data.exists():
            clients = [session.client for session in read_durable(process.data)[0].sessions]
            if clients:
                raise StillInUse(name, clients, len(clients))

    async def _add(self, names: Iterable[str]) -> None:
        for name in names:
            self.fleet.add(name)
        self._place(names)
        await self._start(names)
        for name in names:
            self._begin_watch(name)

    async def _inform(self, names: Iterable[str]) -> None:
        """Make brokers read the topology again, and check the result."""
        for name in names:
            address = self.fleet.addresses[name]
            before = (await ask(address))["process"]["reloads"]
            self.fleet.processes[name].reload()
            deadline = time.monotonic() + LINKS_LIMIT_S
            while (process := (await ask(address))["process"])["reloads"] == before:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"{name} did not read the topology again")
                await asyncio.sleep(POLL_S)
            if process["reload_error"]:
                raise MisuseError(f"{name}: {process['reload_error']}")

    async def _move(self, names: Iterable[str]) -> None:
        for name in names:
            self._place([name])
            await self._restart(name)

    async def _go_back(self, old: Topology, change: OverlayChange) -> None:
        """Undo a change that was refused half-way."""
        for name in change.added:
            await self._end_watch(name)
            process = self.fleet.processes.pop(name, None)
            if process is not None:
                await process.stop()
        self.fleet.topology = old
        self.fleet.write_topology()
        for name in change.removed:
            if name not in self._watchers:
                await self._bring_back(name)
        moved = [name for name in change.moved if self._places[name] != old.place(name)]
        try:
            await self._inform(change.informed)
            await self._move(moved)
            await self._until_links_up()
        except MotetError as problem:
            self._notice(f"not all of the overlay is back as it was: {problem}")

    async def _bring_back(self, name: str) -> None:
        """Start a broker that was retired. If that fails, its watcher tries again, and the other
        brokers are not delayed."""
        try:
            await self.fleet.processes[name].start(None, self._notice)
        except MotetError as problem:
            self._notice(f"{name} is not back yet: {problem}")
        self._begin_watch(name)


async def _until(
    missing: Callable[[Mapping[str, Answer]], list[str]], addresses: Mapping[str, str], what: str
) -> None:
    deadline = time.monotonic() + LINKS_LIMIT_S
    while found := missing(await ask_all(addresses)):
        if time.monotonic() > deadline:
            raise UnavailableError(f"{what} after {LINKS_LIMIT_S:g} s: {', '.join(found)}")
        await asyncio.sleep(POLL_S)
