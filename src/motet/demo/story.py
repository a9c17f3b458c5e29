"""The acts. Each one waits for what must come true, never for a clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from motet.audit.recording import VARIABLE
from motet.client.connecting import connect
from motet.client.reading import open_log
from motet.demo import overlay
from motet.demo.cast import Arrival, Cast, Heard
from motet.demo.chronicle import Chronicle, Sample
from motet.demo.handing import Handing, HandOvers
from motet.demo.overlay import MIDDLE, PUBLISHED_AT, WRITTEN_AT, Overlay
from motet.demo.pipeline import Pipeline
from motet.demo.script import WORKFLOW, Script, events_of
from motet.errors import UnavailableError

if TYPE_CHECKING:
    from motet.audit.verdicts import Audit
    from motet.spark.archive.proof import Proof
    from motet.spark.insight import Report
    from motet.spark.replay import Plan

PUBLISHERS: Final = len(PUBLISHED_AT)
LOTS: Final = 12
KILL_AT: Final = 0.4
"""After this part of the time the broker in the middle dies."""
PATIENCE_S: Final = 60.0
POLL_S: Final = 0.05
SAMPLE_S: Final = 0.5
CHATTER_S: Final = 0.05


class Teller(Protocol):
    """Hears what happens, for whoever watches."""

    def act(self, title: str) -> None: ...

    def say(self, text: str) -> None: ...

    def progress(self, sample: Sample, total: int, remark: str) -> None: ...


@dataclass(frozen=True)
class Wish:
    """What the user asks for."""

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


@dataclass
class Outcome:
    """All that the story came to, to be judged and shown."""

    wish: Wish
    chronicle: Chronicle
    script: Script
    heard: Heard
    moves: HandOvers
    source: str
    silence_s: float = 0.0
    """The longest time without an event after the broker was killed."""
    archived: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    in_logs: int = 0
    """Events in the logs that Spark has read, those that the filter keeps away included."""
    batches: list[int] = field(default_factory=list)
    written: dict[str, list[object]] = field(default_factory=dict)
    """What Spark has written back, as its home's log has it: by transaction."""
    report: Report | None = None
    proof: Proof | None = None
    audit: Audit | None = None
    took_s: float = 0.0


async def play(wish: Wish, tell: Teller) -> Outcome:
    chronicle = Chronicle()
    pipeline = Pipeline(wish.folder, wish.master)
    try:
        return await _play(wish, tell, chronicle, pipeline)
    finally:
        await asyncio.to_thread(pipeline.stop)


async def _play(wish: Wish, tell: Teller, chronicle: Chronicle, pipeline: Pipeline) -> Outcome:
    tell.act("An overlay of five brokers, and Spark")
    starting = asyncio.create_task(asyncio.to_thread(pipeline.start))
    try:
        async with overlay.running(wish.folder / "overlay", wish.history) as brokers:
            tell.say("B1, B2, B4 and B5, with B3 in the middle: processes that keep what they know")
            await starting
            tell.say(f"Spark runs on {wish.master}")
            chronicle.note("brokers and Spark have started")
            plan, source = await _log(wish, pipeline)
            script = Script(await asyncio.to_thread(events_of, plan), LOTS)
            tell.say(f"{source}: {len(script):,} events of {script.cases:,} cases")
            async with Cast(brokers, script.lots, wish.history) as cast:
                handing = Handing(cast, chronicle.now_s)
                told = Outcome(wish, chronicle, script, cast.heard, handing.made, source)
                await _flow(told, handing, brokers, pipeline, plan, tell)
                await _look(told, brokers, pipeline, tell)
        await _judge(told, pipeline, tell)
    finally:
        await asyncio.wait({starting})
    told.took_s = chronicle.now_s()
    return told


async def _log(wish: Wish, pipeline: Pipeline) -> tuple[Plan, str]:
    log, source = wish.log, str(wish.log)
    if log is None:
        log = await asyncio.to_thread(pipeline.make_log, wish.cases, wish.seed)
        source = f"a workflow log made by Spark, seed {wish.seed}"
    plan = await asyncio.to_thread(pipeline.plan, log, PUBLISHERS, wish.columns)
    return plan, source


# ── events flow ──────────────────────────────────────────────────────────────────────────


async def _flow(
    told: Outcome, handing: Handing, brokers: Overlay, pipeline: Pipeline, plan: Plan, tell: Teller
) -> None:
    from motet.spark.replay import Replay, Speed, Told

    seconds = told.wish.seconds
    tell.act(f"The log flows as events for {seconds:g} s, while cases change hands")
    urls = [brokers.addresses[name] for name in PUBLISHED_AT]
    await asyncio.to_thread(pipeline.begin, urls, brokers.addresses[WRITTEN_AT])
    tell.say("Spark reads at B1, B2 and B3, with a filter that they apply; it writes at B5")
    published = 0

    def hear(now: Told) -> None:
        nonlocal published
        published = now.published

    def sample() -> Sample:
        at_s, heard = told.chronicle.now_s(), told.heard
        came = (heard.handled, heard.watched_least, pipeline.archived, heard.results)
        return Sample(at_s, published, *came)

    async def sampling() -> None:
        while True:
            now = sample()
            told.chronicle.samples.append(now)
            pipeline.check()
            remark = f"{len(told.moves.done)} hand-overs"
            tell.progress(now, len(told.script), remark)
            await asyncio.sleep(SAMPLE_S)

    told.chronicle.note("the first event of the log is published")
    over = asyncio.Event()
    with _recorded(told.wish.history):
        speed = Speed.parse(f"{seconds:g}s")
        replay = Replay(plan, urls, speed, advertise=WORKFLOW, tell=hear)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(sampling())
            talking = group.create_task(_chatter(brokers, told.wish.history, over))
            moving = group.create_task(handing.run(over))
            killing = group.create_task(_kill(told, brokers, tell, seconds * KILL_AT))
            hear(await replay.run())
            told.chronicle.note("the last event of the log is published")
            await killing
            over.set()
            await moving
            await talking
            await _settled(told, pipeline)
            told.chronicle.samples.append(sample())
            watching.cancel()
    told.batches = await asyncio.to_thread(pipeline.end)
    told.chronicle.note("everybody has everything")
    last, moves = told.chronicle.samples[-1], told.moves
    tell.say(f"published {last.published:,}, handled {last.handled:,}, archived {last.archived:,}")
    tell.say(f"{len(moves.done)} hand-overs committed, {moves.aborted} aborted and tried again")


async def _chatter(brokers: Overlay, history: Path, over: asyncio.Event) -> None:
    """Somebody at each broker publishes what has nothing to do with the workflow: the filters of
    others keep it away from them."""
    async with contextlib.AsyncExitStack() as stack:
        sensors = {}
        for name in PUBLISHED_AT:
            opening = connect(brokers.addresses[name], client_id=f"sensor-{name}", history=history)
            sensors[name] = await stack.enter_async_context(opening)
            await sensors[name].advertise(f"site = '{name}'")
        number = 0
        while not over.is_set():
            number += 1
            for name, sensor in sensors.items():
                await sensor.publish({"site": name, "reading": number})
            await asyncio.sleep(CHATTER_S)
        for sensor in sensors.values():
            await sensor.flush()


async def _settled(told: Outcome, pipeline: Pipeline) -> None:
    """Until all that is owed has come, or patience ends: the comparison says which."""
    heard, script = told.heard, told.script
    owed, told_steps, counted = map(len, (script.lot_of, script.steps, script.counted))

    def arrived() -> bool:
        return (
            heard.handled >= owed
            and heard.watched_least >= owed
            and pipeline.archived >= told_steps
            and _counted(heard.insight) >= counted
        )

    await _becomes_true(arrived)


def _counted(insight: list[Arrival]) -> int:
    """How many events the newest of the running results speaks of."""
    last = insight[-1].transaction if insight else ""
    newest = [each for each in insight if each.transaction == last]
    return sum(int(str(each.attributes.get("events", 0))) for each in newest)


async def _kill(told: Outcome, brokers: Overlay, tell: Teller, after_s: float) -> None:
    """SIGKILL to the broker that all goes through. `motet up` starts it again."""
    await asyncio.sleep(after_s)
    chronicle, pid = told.chronicle, brokers.pids[MIDDLE]
    os.kill(pid, signal.SIGKILL)
    killed = time.time()
    chronicle.killed_at_s = chronicle.note(f"{MIDDLE} is killed (SIGKILL, pid {pid})")
    tell.say(f"{MIDDLE}, in the middle of everything, is killed: SIGKILL to pid {pid}")
    await _must_become_true(partial(brokers.is_back, MIDDLE), f"{MIDDLE} does not come back")
    chronicle.back_at_s = chronicle.note(f"{MIDDLE} is back, and so are all links")
    down_s = chronicle.back_at_s - chronicle.killed_at_s

    def flowing() -> bool:
        return all(came and came[-1].at > killed + down_s for came in told.heard.watched.values())

    await _becomes_true(flowing)
    told.silence_s = max(
        _silence_s([each.at for each in came], killed) for came in told.heard.watched.values()
    )
    tell.say(
        f"{MIDDLE} is back with all links after {down_s:.1f} s; "
        f"nobody who watches waited longer than {told.silence_s:.1f} s"
    )


def _silence_s(times: list[float], since: float) -> float:
    """The longest time between two arrivals, from the last one before `since` on."""
    after = [each for each in times if each >= since]
    before = max((each for each in times if each < since), default=since)
    return max((b - a for a, b in zip([before, *after], after, strict=False)), default=0.0)


@contextmanager
def _recorded(history: Path) -> Iterator[None]:
    """Clients that are opened now write down what they do and get."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(history)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


# ── afterwards ───────────────────────────────────────────────────────────────────────────


async def _look(told: Outcome, brokers: Overlay, pipeline: Pipeline, tell: Teller) -> None:
    tell.act("Spark looks at all of it, and tells everybody at once")
    home = brokers.addresses[WRITTEN_AT]
    urls = [brokers.addresses[name] for name in PUBLISHED_AT]
    report, rows = await asyncio.to_thread(pipeline.insight, home)
    told.report = report
    tell.say(
        f"{len(report.steps)} kinds of steps, {len(report.handovers)} pairs of agents "
        f"who hand over, {report.outlier_count} steps that took unusually long"
    )
    told.written = await asyncio.to_thread(pipeline.written, home)
    owed = sum(map(len, told.written.values()))
    await _becomes_true(lambda: len(told.heard.insight) >= owed)
    tell.say(f"written back as one transaction of {rows} events, through B5")
    told.chronicle.note("results are written back")
    told.proof = await asyncio.to_thread(pipeline.prove, urls)
    told.archived = await asyncio.to_thread(pipeline.archived_events)
    for url in urls:
        async with open_log(url) as log:
            told.in_logs += sum([each.events for each in await log.describe()])
    agree = "agree" if told.proof.holds else "DO NOT AGREE"
    tell.say(f"archive and logs {agree}: {len(told.archived):,} events of {told.in_logs:,} in logs")


async def _judge(told: Outcome, pipeline: Pipeline, tell: Teller) -> None:
    tell.act("The audit judges what everybody has written down")
    told.audit = await asyncio.to_thread(pipeline.audit, told.wish.history, tell.say)
    told.chronicle.note("the audit has judged")


# ── waiting ──────────────────────────────────────────────────────────────────────────────


async def _becomes_true(
    condition: Callable[[], bool | Awaitable[bool]], patience_s: float = PATIENCE_S
) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)


async def _must_become_true(
    condition: Callable[[], bool | Awaitable[bool]], otherwise: str
) -> None:
    if not await _becomes_true(condition):
        raise UnavailableError(f"{otherwise} within {PATIENCE_S:g} s")
