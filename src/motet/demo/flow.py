"""While events flow: the log is published, cases change hands, Spark reads and writes, and the
broker in the middle is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from motet.audit.recording import VARIABLE
from motet.client.connecting import connect
from motet.demo.cast import Arrival
from motet.demo.chronicle import Sample
from motet.demo.handing import Handing
from motet.demo.outcome import Outcome, Teller
from motet.demo.overlay import MIDDLE, PUBLISHED_AT, WRITTEN_AT, Overlay
from motet.demo.pipeline import Pipeline
from motet.demo.script import WORKFLOW
from motet.demo.waiting import becomes_true, must_become_true
from motet.errors import UnavailableError

if TYPE_CHECKING:
    from motet.spark.replay import Plan, Replay, Told

KILL_AT: Final = 0.4
"""After this part of the time the broker in the middle dies."""
SAMPLE_S: Final = 0.5
CHATTER_S: Final = 0.05
LONGEST_S: Final = 240.0
"""Beyond the time for which the log flows."""


class Flow:
    def __init__(self, told: Outcome, brokers: Overlay, pipeline: Pipeline, tell: Teller) -> None:
        self._told = told
        self._brokers = brokers
        self._pipeline = pipeline
        self._tell = tell
        self._published = 0
        self._over = asyncio.Event()

    async def run(self, plan: Plan, handing: Handing) -> None:
        from motet.spark.replay import Replay, Speed

        told, seconds = self._told, self._told.wish.seconds
        urls = [self._brokers.addresses[name] for name in PUBLISHED_AT]
        home = self._brokers.addresses[WRITTEN_AT]
        await asyncio.to_thread(self._pipeline.begin, urls, home)
        self._tell.say("Spark reads at B1, B2 and B3, by a filter that they apply; it writes at B5")
        speed = Speed.parse(f"{seconds:g}s")
        replay = Replay(plan, urls, speed, advertise=WORKFLOW, tell=self._hear)
        limit = asyncio.timeout(seconds + LONGEST_S)
        try:
            with _recorded(told.wish.history), _first_alone():
                async with limit:
                    await self._all_at_once(replay, handing)
        except TimeoutError:
            if not limit.expired():  # it is somebody else's, and says something else
                raise
            raise UnavailableError(
                f"the log does not come to its end within {seconds + LONGEST_S:g} s"
            ) from None
        told.batches = await asyncio.to_thread(self._pipeline.end)
        told.chronicle.samples.append(self._sample())

    async def _all_at_once(self, replay: Replay, handing: Handing) -> None:
        chronicle, after_s = self._told.chronicle, self._told.wish.seconds * KILL_AT
        async with asyncio.TaskGroup() as group:
            talking = group.create_task(self._chatter())
            await becomes_true(self._is_warm)
            chronicle.began_flowing_s = chronicle.note("the log begins to flow")
            watching = group.create_task(self._watch())
            killing = group.create_task(self._kill(after_s))
            moving = group.create_task(handing.run(self._over))
            self._hear(await replay.run())
            chronicle.note("the last event of the log is published")
            await killing
            self._over.set()
            await asyncio.gather(moving, talking)
            all_came = await self._settled()
            chronicle.note("everybody has everything" if all_came else "nothing comes any more")
            watching.cancel()

    def _is_warm(self) -> bool:
        self._pipeline.check()
        return self._pipeline.is_warm

    def _hear(self, now: Told) -> None:
        if not self._published:  # this is the first
            self._told.chronicle.began_flowing_s = self._told.chronicle.now_s()
        self._published = now.published

    # ── how far everybody is ─────────────────────────────────────────────────────────────

    def _sample(self) -> Sample:
        heard = self._told.heard
        came = (heard.handled, heard.watched_least, self._pipeline.archived, heard.results)
        return Sample(self._told.chronicle.now_s(), self._published, *came)

    async def _watch(self) -> None:
        while True:
            self._pipeline.check()
            now = self._sample()
            self._told.chronicle.samples.append(now)
            remark = f"{len(self._told.moves.done)} hand-overs"
            self._tell.progress(now, len(self._told.script), remark)
            await asyncio.sleep(SAMPLE_S)

    async def _settled(self) -> bool:
        """Until all that is owed has come, or patience ends: the comparison says which."""
        heard, script = self._told.heard, self._told.script
        owed, steps, counted = map(len, (script.lot_of, script.steps, script.counted))

        def arrived() -> bool:
            return (
                heard.handled >= owed
                and heard.watched_least >= owed
                and self._pipeline.archived >= steps
                and _counted(heard.insight) >= counted
            )

        return await becomes_true(arrived)

    # ── beside the log ───────────────────────────────────────────────────────────────────

    async def _chatter(self) -> None:
        """Somebody at each broker publishes what has nothing to do with the workflow: the filters
        of others keep it away from them."""
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
                    await sensor.publish({"site": name, "reading": number})
                await asyncio.sleep(CHATTER_S)
            for sensor in sensors.values():
                await sensor.flush()

    async def _kill(self, after_s: float) -> None:
        """SIGKILL to the broker that all goes through. `motet up` starts it again."""
        await asyncio.sleep(after_s)
        told, chronicle = self._told, self._told.chronicle
        pid = self._brokers.pids[MIDDLE]
        os.kill(pid, signal.SIGKILL)
        killed = time.time()
        chronicle.killed_at_s = chronicle.note(f"{MIDDLE} is killed (SIGKILL, pid {pid})")
        self._tell.say(f"{MIDDLE}, in the middle of everything, is killed: SIGKILL to pid {pid}")
        back = partial(self._brokers.is_back, MIDDLE)
        await must_become_true(back, f"{MIDDLE} does not come back")
        chronicle.back_at_s = chronicle.note(f"{MIDDLE} is back, and so are all links")
        down_s = chronicle.back_at_s - chronicle.killed_at_s

        def flowing() -> bool:
            return all(came and came[-1].at > killed + down_s for came in watched)

        watched = told.heard.watched.values()
        await becomes_true(flowing)
        told.silence_s = max(silence_s([each.at for each in came], killed) for came in watched)
        self._tell.say(
            f"{MIDDLE} is back with all links after {down_s:.1f} s; "
            f"nobody who watches waited longer than {told.silence_s:.1f} s"
        )


def _counted(insight: list[Arrival]) -> int:
    """How many events the newest of the running results speaks of."""
    last = insight[-1].transaction if insight else ""
    newest = [each for each in insight if each.transaction == last]
    return sum(int(str(each.attributes.get("events", 0))) for each in newest)


def silence_s(times: list[float], since: float) -> float:
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


@contextmanager
def _first_alone() -> Iterator[None]:
    """Of several tasks that have failed, what the first one says."""
    try:
        yield
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None
