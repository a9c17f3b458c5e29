"""The acts. Each one waits for what must come true, never for a clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from motet.client.reading import open_log
from motet.demo import overlay
from motet.demo.cast import Cast
from motet.demo.chronicle import Chronicle
from motet.demo.flow import Flow
from motet.demo.handing import Handing
from motet.demo.outcome import Outcome, Teller, Wish
from motet.demo.overlay import PUBLISHED_AT, WRITTEN_AT, Overlay
from motet.demo.pipeline import Pipeline
from motet.demo.script import script_of
from motet.demo.waiting import becomes_true

if TYPE_CHECKING:
    from motet.spark.replay import Plan

LOTS: Final = 12


async def play(wish: Wish, tell: Teller) -> Outcome:
    chronicle = Chronicle()
    pipeline = Pipeline(wish.folder, wish.master)
    try:
        told = await _play(wish, tell, chronicle, pipeline)
    finally:
        await asyncio.to_thread(pipeline.stop)
    told.took_s = chronicle.now_s()
    return told


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
            script = await asyncio.to_thread(script_of, plan, LOTS)
            tell.say(f"{source}: {len(script):,} events of {script.cases:,} cases")
            async with Cast(brokers, script.lots, wish.history) as cast:
                handing = Handing(cast, chronicle.now_s)
                told = Outcome(wish, chronicle, script, cast.heard, handing.made, source)
                tell.act(f"The log flows for {wish.seconds:g} s, while its cases change hands")
                await Flow(told, brokers, pipeline, tell).run(plan, handing)
                _tell_flow(told, tell)
                await _look(told, brokers, pipeline, tell)
        tell.act("The audit judges what everybody has written down")
        told.audit = await asyncio.to_thread(pipeline.audit, wish.history, tell.say)
        chronicle.note("the audit has judged")
    finally:
        await asyncio.wait({starting})
    return told


async def _log(wish: Wish, pipeline: Pipeline) -> tuple[Plan, str]:
    log, source = wish.log, str(wish.log)
    if log is None:
        log = await asyncio.to_thread(pipeline.make_log, wish.cases, wish.seed)
        source = f"a workflow log made by Spark, seed {wish.seed}"
    plan = await asyncio.to_thread(pipeline.plan, log, len(PUBLISHED_AT), wish.columns)
    return plan, source


def _tell_flow(told: Outcome, tell: Teller) -> None:
    last, moves = told.chronicle.samples[-1], told.moves
    tell.say(f"published {last.published:,}, handled {last.handled:,}, archived {last.archived:,}")
    tell.say(f"{len(moves.done)} hand-overs committed, {moves.aborted} aborted and tried again")


async def _look(told: Outcome, brokers: Overlay, pipeline: Pipeline, tell: Teller) -> None:
    tell.act("Spark looks at all of it, and tells everybody at once")
    home = brokers.addresses[WRITTEN_AT]
    urls = [brokers.addresses[name] for name in PUBLISHED_AT]
    report, rows = await asyncio.to_thread(pipeline.insight, home)
    told.report = report
    tell.say(
        f"{len(report.steps)} kinds of steps, {report.pair_count:,} pairs of agents who hand "
        f"over, {report.outlier_count:,} steps that took unusually long"
    )
    told.written = await asyncio.to_thread(pipeline.written, home)
    owed = sum(map(len, told.written.values()))
    await becomes_true(lambda: len(told.heard.insight) >= owed)
    tell.say(f"written back as one transaction of {rows} events, through {WRITTEN_AT}")
    told.chronicle.note("results are written back")
    told.proof = await asyncio.to_thread(pipeline.prove, urls)
    told.archived = await asyncio.to_thread(pipeline.archived_events)
    for url in urls:
        async with open_log(url) as log:
            told.in_logs += sum([each.events for each in await log.describe()])
    agree = "agree" if told.proof.holds else "DO NOT AGREE"
    tell.say(f"archive and logs {agree}: {len(told.archived):,} events of {told.in_logs:,} in logs")
