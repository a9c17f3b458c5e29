"""The acts and their results. Each act waits for conditions, never for a fixed time.

In the longest one, events flow: the log is published, cases change hands, an agent moves to another
broker, Spark reads and writes, and the broker in the middle is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from motet.audit.recorder import VARIABLE
from motet.client import connect
from motet.client.logs import open_log
from motet.errors import UnavailableError
from motet_labs.demo import overlay
from motet_labs.demo.clients import (
    AgentMove,
    DemoClients,
    Dispatcher,
    EventSeen,
    HandOvers,
    Heard,
    follow,
)
from motet_labs.demo.overlay import (
    MIDDLE,
    PUBLISHED_AT,
    WRITTEN_AT,
    Overlay,
    becomes_true,
    must_become_true,
)
from motet_labs.demo.pipeline import Pipeline
from motet_labs.demo.script import WORKFLOW, Script, script_of
from motet_labs.figures import silence_s

if TYPE_CHECKING:
    from motet.audit.verdicts import Audit
    from motet.spark.archive.proof import Proof
    from motet.spark.insight import InsightReport
    from motet.spark.replay import Replay, ReplayPlan, ReplayProgress

LOTS: Final = 12
FOLLOW_AT: Final = 0.2
"""An agent moves to another broker after this fraction of the time."""
KILL_AT: Final = 0.4
"""The broker in the middle is killed after this fraction of the time."""
SAMPLE_S: Final = 0.5
CHATTER_S: Final = 0.05
LONGEST_S: Final = 240.0
"""In addition to the time for which the log flows."""


# ── results ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Wish:
    """The user's parameters."""

    folder: Path
    log: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    cases: int = 1200
    seconds: float = 45.0
    seed: int = 7
    master: str = "local[2]"

    @property
    def history(self) -> Path:
        return self.folder.absolute() / "history"


class Sample(NamedTuple):
    """The progress of all parts at one time."""

    at_s: float
    published: int
    handled: int
    watched: int
    archived: int


@dataclass
class Timeline:
    """What happened when, in seconds since the story began; for the page and its pictures."""

    began: float = field(default_factory=time.time)
    moments: list[tuple[float, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    began_flowing_s: float = 0.0
    """When the first event was published."""
    killed_at_s: float | None = None
    back_at_s: float | None = None

    @property
    def down_s(self) -> float:
        """How long the broker in the middle was down."""
        return (self.back_at_s or 0.0) - (self.killed_at_s or 0.0)

    def now_s(self) -> float:
        return time.time() - self.began

    def note(self, what: str) -> float:
        at_s = self.now_s()
        self.moments.append((at_s, what))
        return at_s


@dataclass
class StoryOutcome:
    """All results of the story, to be judged and shown."""

    wish: Wish
    timeline: Timeline
    script: Script
    heard: Heard
    moves: HandOvers
    source: str
    move: AgentMove | None = None
    silence_s: float = 0.0
    """The longest time without an event after the broker was killed."""
    archived: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    in_logs: int = 0
    """Events in the logs that Spark read, including those rejected by the filter."""
    batches: list[int] = field(default_factory=list)
    """Of the query with running counts, from Spark's checkpoint."""
    written: dict[str, list[object]] = field(default_factory=dict)
    """Spark's results in the log of their home broker, by transaction."""
    report: InsightReport | None = None
    proof: Proof | None = None
    audit: Audit | None = None
    took_s: float = 0.0


class Teller(Protocol):
    """Receives progress for display."""

    def act(self, title: str) -> None: ...

    def say(self, text: str) -> None: ...

    def progress(self, sample: Sample, total: int, remark: str) -> None: ...


# ── the acts ─────────────────────────────────────────────────────────────────────────────


async def play(wish: Wish, tell: Teller) -> StoryOutcome:
    timeline, pipeline = Timeline(), Pipeline(wish.folder, wish.master)
    tell.act("Start five brokers and Spark")
    starting = asyncio.create_task(asyncio.to_thread(pipeline.start))
    try:
        async with overlay.running(wish.folder / "overlay", wish.history) as brokers:
            tell.say("B3 connects B1, B2, B4 and B5; each is a process with durable state")
            await starting
            tell.say(f"Spark runs on {wish.master}")
            timeline.note("brokers and Spark have started")
            plan, source = await asyncio.to_thread(_log, wish, pipeline)
            script = await asyncio.to_thread(script_of, plan, LOTS)
            tell.say(f"{source}: {len(script):,} events of {script.cases:,} cases")
            async with DemoClients(brokers, script.lots, wish.history) as clients:
                dispatcher = Dispatcher(clients, timeline.now_s)
                moves = dispatcher.made
                told = StoryOutcome(wish, timeline, script, clients.heard, moves, source)
                tell.act(f"Publish the log within {wish.seconds:g} s, and hand over its cases")
                await Flow(told, brokers, pipeline, tell).run(plan, clients, dispatcher)
                last = timeline.samples[-1]
                passed = f"handled {last.handled:,}, archived {last.archived:,}"
                tell.say(f"published {last.published:,}, {passed}")
                tried = f"{moves.aborted} aborted and retried"
                tell.say(f"{len(moves.done)} hand-overs committed, {tried}")
                await _look(told, brokers, pipeline, tell)
        tell.act("Audit the histories of all brokers and clients")
        told.audit = await asyncio.to_thread(pipeline.audit, wish.history, tell.say)
        timeline.note("the audit is complete")
    finally:
        await asyncio.wait({starting})
        await asyncio.to_thread(pipeline.stop)
    told.took_s = timeline.now_s()
    return told


def _log(wish: Wish, pipeline: Pipeline) -> tuple[ReplayPlan, str]:
    log, source = wish.log, str(wish.log)
    if log is None:
        log = pipeline.make_log(wish.cases, wish.seed)
        source = f"a workflow log generated by Spark, seed {wish.seed}"
    return pipeline.plan(log, len(PUBLISHED_AT), wish.columns), source


async def _look(told: StoryOutcome, brokers: Overlay, pipeline: Pipeline, tell: Teller) -> None:
    tell.act("Spark analyses the archive and publishes the results")
    home = brokers.addresses[WRITTEN_AT]
    urls = [brokers.addresses[name] for name in PUBLISHED_AT]
    report, rows = await asyncio.to_thread(pipeline.insight, home)
    told.report = report
    tell.say(
        f"{len(report.steps)} kinds of steps, {report.pair_count:,} pairs of agents that pass "
        f"cases on, {report.outlier_count:,} steps that took unusually long"
    )
    told.written = await asyncio.to_thread(pipeline.written, home)
    owed = sum(map(len, told.written.values()))
    await becomes_true(lambda: len(told.heard.insight) >= owed)
    tell.say(f"results published at {WRITTEN_AT} as one transaction of {rows} events")
    told.timeline.note("the results are published")
    told.proof = await asyncio.to_thread(pipeline.prove, urls)
    told.archived = await asyncio.to_thread(pipeline.archived_events)
    for url in urls:
        async with open_log(url) as log:
            told.in_logs += sum([each.events for each in await log.describe()])
    agree = "agree" if told.proof.holds else "DO NOT AGREE"
    tell.say(f"archive and logs {agree}: {len(told.archived):,} events of {told.in_logs:,} in logs")


# ── while events flow ────────────────────────────────────────────────────────────────────


class Flow:
    def __init__(
        self, told: StoryOutcome, brokers: Overlay, pipeline: Pipeline, tell: Teller
    ) -> None:
        self._told = told
        self._brokers = brokers
        self._pipeline = pipeline
        self._tell = tell
        self._published = 0
        self._over = asyncio.Event()

    async def run(self, plan: ReplayPlan, cast: DemoClients, dispatcher: Dispatcher) -> None:
        from motet.spark.replay import Replay, Speed

        told, seconds = self._told, self._told.wish.seconds
        urls = [self._brokers.addresses[name] for name in PUBLISHED_AT]
        home = self._brokers.addresses[WRITTEN_AT]
        await asyncio.to_thread(self._pipeline.begin, urls, home)
        self._tell.say("Spark reads from B1, B2 and B3, which filter the events; it writes to B5")
        speed = Speed.parse(f"{seconds:g}s")
        replay = Replay(plan, urls, speed, advertise=WORKFLOW, tell=self._hear)
        limit = asyncio.timeout(seconds + LONGEST_S)
        try:
            with _recorded(told.wish.history), _first_alone():
                async with limit:
                    await self._all_at_once(replay, cast, dispatcher)
        except TimeoutError:
            if not limit.expired():  # a timeout from elsewhere, with its own message
                raise
            raise UnavailableError(
                f"the log was not published and received within {seconds + LONGEST_S:g} s"
            ) from None
        told.batches = await asyncio.to_thread(self._pipeline.end)
        told.timeline.samples.append(self._sample())

    async def _all_at_once(self, replay: Replay, cast: DemoClients, dispatcher: Dispatcher) -> None:
        timeline, after_s = self._told.timeline, self._told.wish.seconds * KILL_AT
        async with asyncio.TaskGroup() as group:
            talking = group.create_task(self._chatter())
            await becomes_true(self._is_warm)
            timeline.began_flowing_s = timeline.note("publishing of the log begins")
            watching = group.create_task(self._watch())
            killing = group.create_task(self._kill(after_s))
            handing = group.create_task(dispatcher.run(self._over))
            moving = group.create_task(self._follow(cast, dispatcher))
            self._hear(await replay.run())
            timeline.note("the last event of the log is published")
            await asyncio.gather(killing, moving)
            self._over.set()
            await asyncio.gather(handing, talking)
            all_came = await becomes_true(self._is_settled)
            timeline.note("all clients have all events" if all_came else "no more events arrive")
            watching.cancel()

    def _is_warm(self) -> bool:
        self._pipeline.check()
        return self._pipeline.is_warm

    def _hear(self, now: ReplayProgress) -> None:
        if not self._published:  # this is the first
            self._told.timeline.began_flowing_s = self._told.timeline.now_s()
        self._published = now.published

    def _sample(self) -> Sample:
        heard = self._told.heard
        came = (heard.handled, heard.watched_least, self._pipeline.archived)
        return Sample(self._told.timeline.now_s(), self._published, *came)

    async def _watch(self) -> None:
        while True:
            self._pipeline.check()
            now = self._sample()
            self._told.timeline.samples.append(now)
            remark = f"{len(self._told.moves.done)} hand-overs"
            self._tell.progress(now, len(self._told.script), remark)
            await asyncio.sleep(SAMPLE_S)

    def _is_settled(self) -> bool:
        """Whether all that is owed has arrived."""
        heard, script = self._told.heard, self._told.script
        return (
            min(heard.handled, heard.watched_least) >= len(script.lot_of)
            and self._pipeline.archived >= len(script.steps)
            and _counted(heard.insight) >= len(script.counted)
        )

    async def _chatter(self) -> None:
        """A client at each broker publishes events unrelated to the workflow, which the filters of
        the other clients reject."""
        async with contextlib.AsyncExitStack() as stack:
            sensors = {}
            for name in PUBLISHED_AT:
                opening = connect(self._brokers.addresses[name], client_id=f"sensor-{name}")
                sensors[name] = await stack.enter_async_context(opening)
                await sensors[name].advertise(f"site = '{name}'")
            number = 0
            while not self._over.is_set():
                number += 1
                for name, sensor in sensors.items():
                    await sensor.send({"site": name, "reading": number})
                await asyncio.sleep(CHATTER_S)
            for sensor in sensors.values():
                await sensor.flush()

    async def _follow(self, cast: DemoClients, dispatcher: Dispatcher) -> None:
        """One agent moves to another broker, with its lots, while they may change hands."""
        told, timeline = self._told, self._told.timeline
        await asyncio.sleep(told.wish.seconds * FOLLOW_AT)
        move = told.move = await follow(cast, dispatcher, timeline.now_s)
        lots = f"{move.lots} lot{'s' * (move.lots > 1)}"
        what = f"{move.agent} moves from {move.source} to {move.target}, with {lots}"
        timeline.note(what)
        self._tell.say(f"{what}, in {move.took_s * 1e3:,.0f} ms")

    async def _kill(self, after_s: float) -> None:
        """SIGKILL the broker that everything passes through. The supervisor restarts it."""
        await asyncio.sleep(after_s)
        told, timeline = self._told, self._told.timeline
        pid = self._brokers.pids[MIDDLE]
        os.kill(pid, signal.SIGKILL)
        killed = time.time()
        timeline.killed_at_s = timeline.note(f"{MIDDLE} is killed (SIGKILL, pid {pid})")
        self._tell.say(f"{MIDDLE}, the broker in the middle, is killed: SIGKILL to pid {pid}")
        back = partial(self._brokers.is_back, MIDDLE)
        await must_become_true(back, f"{MIDDLE} did not restart")
        timeline.back_at_s = timeline.note(f"{MIDDLE} has restarted, and all links are up")
        down_s, watched = timeline.down_s, told.heard.watched.values()
        await becomes_true(lambda: all(came and came[-1].at > killed + down_s for came in watched))
        told.silence_s = max(silence_s([each.at for each in came], killed) for came in watched)
        self._tell.say(
            f"{MIDDLE} is back with all links after {down_s:.1f} s; "
            f"no watcher waited longer than {told.silence_s:.1f} s for an event"
        )


def _counted(insight: list[EventSeen]) -> int:
    """The number of events in the newest running result."""
    last = insight[-1].transaction if insight else ""
    newest = [each for each in insight if each.transaction == last]
    return sum(int(str(each.attributes.get("events", 0))) for each in newest)


@contextmanager
def _recorded(history: Path) -> Iterator[None]:
    """Clients opened within the block record their history."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(history)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


@contextmanager
def _first_alone() -> Iterator[None]:
    """Of several failed tasks, raise the error of the first."""
    try:
        yield
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
