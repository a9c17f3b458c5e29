"""The cost of durability: control that waits for the disk, recovery, snapshots in between.

Brokers, clients and readers of folders are processes of their own. In every round each measurement
with a journal is beside the same one without, or beside the bare disk, so that both run under the
same conditions; medians over the rounds are reported.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

from motet.broker.core.durable import Durable
from motet.broker.core.rebuild import core_of
from motet.broker.core.records import decode_fact
from motet.broker.driver.driver import BrokerDriver
from motet.broker.driver.service import PUBEND
from motet.broker.folder.compaction import Compaction
from motet.broker.folder.recovery import JOURNAL, open_folder, read_durable
from motet.broker.overlay.topology import Wiring
from motet.client.client import connect
from motet.fleet.process import BrokerProcess
from motet.model.filters import EVERYTHING
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import Dialled, Input, Output, Received
from motet.protocol.delivery.facts import FloorRaised
from motet.protocol.frames import PROTOCOL_VERSION, Frame
from motet.protocol.link.messages import Control
from motet.protocol.machine import FACT
from motet.protocol.session.messages import AdvertiseRequest, ClientHello, SubscribeRequest
from motet.runtime.clock import SteadyClock
from motet.runtime.codec import decode, encode
from motet.runtime.log import FileLog
from motet.runtime.log.folder import segment_files
from motet.runtime.log.layout import HEADER_BYTES, MILESTONE, RECORD, payloads_of
from motet.runtime.log.layout import RECORD_BYTES as RECORD_HEAD_BYTES
from motet.runtime.loop import settle_memory
from motet.runtime.pubend.records import RUN
from motet_labs import processes
from motet_labs.bench import floor, load, logs, workload
from motet_labs.figures import Figure, Progress, Samples, Size, in_rounds
from motet_labs.processes import hear_from, percentiles

LINE = 3
RECORD_BYTES = 200
"""Approximate size of a subscription in a journal."""

# Goals.
OPERATIONS_PER_S = 20_000.0
REPLAY_RATIO = 2.0
LOAD_S = 5.0
PAUSE_MS = 20.0
EVENTS_RATIO = 0.95


class JournalEffort(NamedTuple):
    rounds: int
    churn_s: float
    events: int
    settlings: int
    fsyncs: int
    snapshots: int
    idle_s: float
    subscriptions: int = 100_000
    """In the snapshot."""
    clients: int = 64
    """Clients that subscribe and unsubscribe."""
    rejoined: int = 20_000
    """Subscriptions sent to a neighbour that joins again from scratch."""


EFFORTS = {
    Size.LEAST: JournalEffort(1, 0.1, 2000, 5, 10, 1, 0.05, 500, clients=4, rejoined=50),
    Size.SHORT: JournalEffort(3, 1.5, 100_000, 100, 200, snapshots=1, idle_s=2.0, rejoined=2_000),
    Size.LONG: JournalEffort(7, 4.0, 300_000, 400, fsyncs=1000, snapshots=3, idle_s=5.0),
}


def run(size: Size, progress: Progress) -> list[Figure]:
    effort = EFFORTS[size]
    samples = in_rounds(effort.rounds, STAGES, effort, progress)
    progress(f"a snapshot of {effort.subscriptions:,} subscriptions")
    for _ in range(effort.snapshots):
        samples.add(_snapshot(effort))
    progress("a neighbour that joins again")
    rejoining = rejoin(effort.rejoined)
    return [*_figures(samples, effort), *logs.measure_log(size, progress), *rejoining]


def _disk(effort: JournalEffort) -> dict[str, float]:
    """The floor: small records, each synced before the next."""
    with processes.folder() as folder:
        times = floor.fsyncs(folder, effort.fsyncs, RECORD_BYTES)
    return {"fsync us": median(times) * 1e6, "fsync rate": len(times) / sum(times)}


def _churn(effort: JournalEffort) -> dict[str, float]:
    """The same load without and with a journal; then the journal is replayed."""

    def churned(broker: BrokerProcess) -> dict[str, float]:
        how = (broker.address, broker.pid, effort.clients, effort.churn_s)
        return hear_from(load.churn, *how)

    with processes.broker() as broker:
        volatile = churned(broker)
    with processes.folder() as folder:
        with processes.broker(data=folder) as broker:
            durable = churned(broker)
        loaded = hear_from(load_folder, folder)
    return {
        "volatile operations": volatile["operations_per_s"],
        "volatile cpu": volatile["cpu_us_per_operation"],
        "operations": durable["operations_per_s"],
        "cpu": durable["cpu_us_per_operation"],
        "replay": loaded["facts"] / loaded["seconds"],
        "lost operations": max(durable["answered"] - loaded["facts"], 0.0),
    }


def _settling(effort: JournalEffort) -> dict[str, float]:
    """One operation at a time, at one broker and along a line, without and with journals."""
    taken: dict[str, float] = {}
    for brokers in (1, LINE):
        with processes.folder() as folder:
            folders = [folder / f"B{number + 1}" for number in range(brokers)]
            for kind, data in (("volatile ", []), ("", folders)):
                with processes.line(brokers, data=data) as line:
                    ends = line[0].address, line[-1].address
                    heard = hear_from(settle, *ends, effort.settlings, [*map(str, data)])
                taken[f"{kind}settling {brokers}"] = heard["p50_us"]
            taken[f"commits {brokers}"] = heard["commits"]
    return taken


def _events(effort: JournalEffort) -> dict[str, float]:
    """Regular publications, which are not journaled."""
    with processes.broker() as broker:
        volatile, _ = load.stream([broker], effort.events)
    with processes.folder() as folder, processes.broker(data=folder) as broker:
        durable, _ = load.stream([broker], effort.events)
    lost = volatile["lost"] + durable["lost"]
    return {"volatile events": volatile["rate"], "events": durable["rate"], "lost events": lost}


STAGES: dict[str, Callable[[JournalEffort], dict[str, float]]] = {
    "the disk": _disk,
    "clients that subscribe and unsubscribe": _churn,
    "one operation after the other": _settling,
    "events": _events,
}


def _snapshot(effort: JournalEffort) -> dict[str, float]:
    """Take a snapshot while the event loop is monitored, and load it."""
    with processes.folder() as folder:
        hear_from(fill_folder, folder, effort.subscriptions)
        paused = hear_from(pause, folder, effort.idle_s)
        loaded = hear_from(load_folder, folder)
    missing = effort.subscriptions - loaded["subscriptions"]
    return paused | {"load": loaded["seconds"], "lost subscriptions": missing}


# ── one operation after the other ─────────────────────────────────────────────────────────

WARM_UPS = 10


async def settle(
    from_url: str, to_url: str, operations: int, folders: Sequence[str]
) -> dict[str, float]:
    """How long a subscription takes until it is effective, and how many commits it causes. An
    advertiser is at one end, a subscriber at the other; each subscription travels to the advertiser
    and its echo comes back. `folders` are those of the brokers on the path."""
    times: list[float] = []
    async with (
        connect(to_url, client_id="bench-advertiser") as advertiser,
        connect(from_url, client_id="bench-settling") as subscriber,
    ):
        await advertiser.advertise(workload.SPACE)
        wanted = [f"{workload.SPACE} and number > {number}" for number in range(operations)]
        for each in wanted[:WARM_UPS]:
            await (await subscriber.subscribe(each)).unsubscribe()
        settle_memory()
        before = sum(map(journal_commits, folders))
        for each in wanted:
            began = time.perf_counter()
            subscription = await subscriber.subscribe(each)
            times.append((time.perf_counter() - began) * 1e6)
            await subscription.unsubscribe()
        commits = sum(map(journal_commits, folders)) - before
    # Every subscription was followed by its removal.
    return percentiles(times) | {"commits": commits / operations / 2}


def journal_commits(folder: str) -> int:
    """The number of groups that the journal of a broker, which may be running, has synced. Groups
    with only clients' progress in exactly-once events do not count: no operation waits for them."""
    return _commits(Path(folder) / JOURNAL, FACT)


def pubend_commits(folder: Path) -> int:
    """The number of groups with events in its pubend's log. Starts and ends of sessions may have
    groups of their own."""
    return _commits(folder / PUBEND, RUN)


def _commits(folder: Path, kind: int) -> int:
    """A milestone precedes each group."""
    count = 0
    for path in segment_files(folder):
        data, at, counted = path.read_bytes(), HEADER_BYTES, True
        while at < len(data):
            _, length, _, number, found, flags = RECORD.unpack_from(data, at)
            body = data[at + RECORD_HEAD_BYTES : at + RECORD_HEAD_BYTES + length]
            at += RECORD_HEAD_BYTES + length
            if found == MILESTONE:
                counted = False
            elif found == kind and not counted:
                counted = kind == RUN or not all(
                    isinstance(decode_fact(each).body, FloorRaised)
                    for each in payloads_of(number, flags, body)
                )
                count += counted
    return count


# ── a folder with very many subscriptions ────────────────────────────────────────────────
# Each runs in a process of its own, so that the memory of one does not slow down the next.

PER_CLIENT = 1000
LEASE_S = 3600.0
"""No client is connected, and no session may end meanwhile."""


def fill_folder(folder: str, subscriptions: int) -> dict[str, float]:
    """Fill the journal of a broker with this many subscriptions of clients."""
    core, journal, _ = open_folder(BrokerConfig("B1"), Path(folder))

    def give(given: Input) -> None:
        output = core.step(given, core.durable.now)
        journal.append(output.persist)

    wanted = iter(workload.subscriptions(subscriptions))
    for connection in count(1):
        give(Received(connection, ClientHello(PROTOCOL_VERSION, f"bench-{connection}")))
        for sequence, each in zip(range(1, PER_CLIENT + 1), wanted, strict=False):
            give(Received(connection, SubscribeRequest(sequence, each)))
        if connection * PER_CLIENT >= subscriptions:
            break
    assert isinstance(journal.log, FileLog)
    journal.log.sync()
    journal.log.shut()
    return {}


def load_folder(folder: str) -> dict[str, float]:
    """Load the state in a folder as a starting broker does."""
    began = time.perf_counter()
    durable, position = read_durable(Path(folder))
    took_s = time.perf_counter() - began
    subscriptions = len(durable.routing.state.subscriptions)
    return {"seconds": took_s, "facts": position, "subscriptions": subscriptions}


async def pause(folder: str, seconds: float) -> dict[str, float]:
    """The longest time during which a broker's event loop is blocked: while idle for this time, and
    while a snapshot is taken."""
    core, journal, _ = open_folder(BrokerConfig("B1", lease_s=LEASE_S), Path(folder))
    clock = SteadyClock(core.durable.now)
    driver = BrokerDriver(core, Wiring("motet://127.0.0.1:0", {}), clock=clock, journal=journal)
    await driver.start()
    settle_memory()
    idle = await logs.longest_pause(asyncio.create_task(asyncio.sleep(seconds)))
    began = time.perf_counter()
    taking = Compaction(Path(folder), journal, core.acknowledged).take()
    longest = await logs.longest_pause(asyncio.ensure_future(taking))
    took_s = time.perf_counter() - began
    await driver.stop()
    pauses = {"idle pause": idle.late_s * 1e3, "pause": longest.late_s * 1e3}
    return pauses | {"work": longest.busy_s * 1e3, "snapshot": took_s}


# ── a neighbour that rejoins from scratch ────────────────────────────────────────────────

SHARE = 0.01
"""The share of all events that one subscription matches."""
CLIENT, LINK = 1, 2


class _Pair:
    """A with its subscriptions, B with an advertisement that attracts all of them. Between the two
    cores there is only the codec: the time is what one process spends on both ends together.
    Network and disk come on top, per frame of at most `CONTROL_CHUNK` messages."""

    def __init__(self, subscriptions: int) -> None:
        self.cores = {
            name: core_of(Durable(BrokerConfig(name, (other,)))) for name, other in ("AB", "BA")
        }
        self._under_way: deque[tuple[str, bytes]] = deque()
        self.control = self.frames = self.bytes = 0
        for name in self.cores:
            self._hear(name, CLIENT, ClientHello(PROTOCOL_VERSION, f"client-{name}"))
        for sequence, wanted in enumerate(workload.filters(subscriptions, SHARE), 1):
            self._hear("A", CLIENT, SubscribeRequest(sequence, wanted, wait=False))
        self._hear("B", CLIENT, AdvertiseRequest(1, EVERYTHING, wait=False))

    def join(self) -> float:
        """Seconds from the first hello until neither side has anything left to send."""
        began = time.perf_counter()
        self._carry("A", self.cores["A"].step(Dialled(LINK, "B"), 0.0))
        while self._under_way:
            name, body = self._under_way.popleft()
            self._hear(name, LINK, decode(body))
        return time.perf_counter() - began

    def _hear(self, name: str, connection: int, frame: Frame) -> None:
        self._carry(name, self.cores[name].step(Received(connection, frame), 0.0))

    def _carry(self, name: str, out: Output) -> None:
        other = "B" if name == "A" else "A"
        for _, frame in out.send:
            body = encode(frame)
            self.frames += 1
            self.bytes += len(body)
            if isinstance(frame, Control):
                self.control += len(frame.messages)
            self._under_way.append((other, body))


def rejoin(count: int) -> list[Figure]:
    """A neighbour that was given up or has lost its state joins a broker with many subscriptions,
    all of which it attracts."""
    pair = _Pair(count)
    took_s = pair.join()
    arrived = len(pair.cores["B"].durable.routing.state.subscriptions) == count
    what = f"rejoin, {count:,} subscriptions"
    return [
        Figure(f"{what}, control messages", pair.control, "messages", counts=arrived),
        Figure(f"{what}, frames", pair.frames, "frames", counts=arrived),
        Figure(f"{what}, both ends together", took_s, "s", counts=arrived),
        Figure(f"{what}, size of all frames", pair.bytes / 1e6, "MB", counts=arrived),
    ]


def _figures(samples: Samples, effort: JournalEffort) -> list[Figure]:
    middle = samples.medians()
    complete = max(samples["lost operations"]) == 0
    live, fsync_us = middle["operations"], middle["fsync us"]
    figures = [
        Figure(f"durable subscribe and unsubscribe operations, {effort.clients} clients",
               live, "operations/s", middle["volatile operations"], OPERATIONS_PER_S, "at least",
               counts=complete),
        Figure("fsyncs of this run, one after the other", middle["fsync rate"], "fsyncs/s"),
        Figure("broker CPU per durable operation", middle["cpu"], "µs", middle["volatile cpu"]),
        Figure("replay of the journal of the same operations",
               middle["replay"], "facts/s", live, REPLAY_RATIO * live, "at least", counts=complete),
        Figure(f"snapshot of {effort.subscriptions:,} subscriptions: loading it",
               middle["load"], "s", None, LOAD_S, counts=max(samples["lost subscriptions"]) == 0),
        Figure("… taking it, in another process", middle["snapshot"], "s"),
        Figure("… longest pause of the event loop meanwhile",
               middle["pause"], "ms", middle["idle pause"], PAUSE_MS),
        Figure("… of which the loop was at work", middle["work"], "ms", None, PAUSE_MS),
        Figure(
            "events end to end, broker with a journal",
            middle["events"], "events/s", middle["volatile events"],
            EVENTS_RATIO * middle["volatile events"], "at least",
            counts=max(samples["lost events"]) == 0,
        ),
    ]  # fmt: skip
    for brokers in (1, LINE):
        # To the far end and back: every broker on the path except the last writes twice.
        on_the_way = float(2 * brokers - 1)
        where = "one broker" if brokers == 1 else f"line of {brokers}"
        figures += [
            Figure(f"group commits for one operation, {where}",
                   middle[f"commits {brokers}"], "commits", None, on_the_way),
            Figure(f"latency of one durable operation, {where}, p50",
                   middle[f"settling {brokers}"], "µs",
                   middle[f"volatile settling {brokers}"] + on_the_way * fsync_us),
        ]  # fmt: skip
    return figures
