"""The audit judges order across topics as the checkers of the simulator do, and finds each kind of
violation. One audit judges everything here, each run under its own name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import motet
from motet.audit.recorder import VARIABLE
from motet.audit.verdicts import Audit
from motet.fleet.process import SiteProcess, free_addresses
from motet.spark.audit import audit
from motet.spark.audit.generator import OrderScale, generate_order
from motet.testing.ordering.rows import write_history
from motet.testing.simulation import observe_ordering
from tests.spark.planted_violations import (
    ORDER_EXCUSES,
    ORDER_PLANTS,
    clean_order,
    spoilt_order,
    write,
)
from tests.waiting import PATIENCE_S

JUDGED = {"notification-order", "causality", "numbers", "completeness"}
CLEAN_SEEDS = (0, 1, 2, 3)
BUGS = (
    "sites-outside-the-group-are-skipped",
    "new-partners-are-not-told",
    "a-stream-counts-with-what-it-has-now",
    "a-change-names-only-what-the-stream-has",
    "a-repeated-request-gets-a-new-number",
    "no-number-becomes-void",
    "a-void-number-loses-its-timestamp",
    "the-expired-are-not-told",
    "a-joiner-does-not-stop",
    "a-joiner-does-not-wait-for-its-cut",
    "a-dropped-topic-is-delivered-until-the-answer",
    "requests-leave-in-any-order",
    "a-publisher-does-not-wait-between-sites",
    "nobody-asks",
    "late-events-are-not-tagged",
)
"""Those that show in what streams got and publishers were told."""
FROM_SEED = {"a-stream-counts-with-what-it-has-now": 5}
MOST_SEEDS = 20
EACH = 40
SMALL_BYTES = 20_000
"""So that a small history is judged as a large one."""


@dataclass(frozen=True)
class JudgedRuns:
    audit: Audit
    broken: dict[str, set[str]]
    """By simulated run: what the checkers of the simulator say is broken."""


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JudgedRuns:
    folder = tmp_path_factory.mktemp("history")
    broken = {f"seed {seed}": simulated(folder, f"seed {seed}", seed) for seed in CLEAN_SEEDS}
    for bug in BUGS:
        for seed in range(FROM_SEED.get(bug, 0), MOST_SEEDS):
            broken[bug] = simulated(folder, bug, seed, bug)
            if broken[bug]:
                break
    worlds = {"clean": clean_order()}
    worlds |= {kind: spoilt_order(plant) for kind, (_, plant) in ORDER_PLANTS.items()}
    worlds |= {case: spoilt_order(plant) for case, plant in ORDER_EXCUSES.items()}
    write(worlds, folder)
    asyncio.run(live(folder))
    tamper(folder)
    apart = tmp_path_factory.mktemp("killed")
    asyncio.run(killed(apart, tmp_path_factory.mktemp("site")))
    rename(apart, folder, "killed")
    return JudgedRuns(audit(spark, folder), broken)


def simulated(folder: Path, run: str, seed: int, bug: str | None = None) -> set[str]:
    history, verdicts = observe_ordering(seed, bug)
    broken = {each.guarantee for each in verdicts if each.violations} & JUDGED
    if broken or bug is None:
        write_history(history, folder, run)
    return broken


async def live(folder: Path) -> None:
    """A site and two clients, which write down what they do, as the run without a name. One of them
    answers events of the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder))
        async with motet.local(brokers=1, ordering=True) as overlay:
            where = {"sequencer": overlay.sequencer}
            async with (
                motet.ordering.connect("memory://audited", **where) as asking,
                motet.ordering.connect("memory://audited", **where) as answering,
                asking.subscribe("orders", "answers") as one,
                answering.subscribe("answers", "orders") as other,
            ):
                await converse(asking, answering, other)
                for _ in range(2 * EACH):
                    await one.get(timeout=PATIENCE_S)
                await other.add("alarms")
                await other.drop("orders")
                await asking.publish("alarms", b"fire")
                while (await other.get(timeout=PATIENCE_S)).topic != "alarms":
                    pass


async def converse(
    asking: motet.ordering.OrderingClient,
    answering: motet.ordering.OrderingClient,
    stream: motet.ordering.OrderedStream,
) -> None:
    for number in range(EACH):
        await asking.send("orders", b"%d" % number)
    for _ in range(EACH):
        while (event := await stream.get(timeout=PATIENCE_S)).topic != "orders":
            pass
        await answering.send("answers", event.payload)
    await asking.flush()
    await answering.flush()


async def killed(folder: Path, data: Path) -> None:
    """A site as a process, killed between numbers and back again, and two clients."""
    (address,) = free_addresses(1)
    site = SiteProcess("S1", ("--listen", address, "--history", str(folder)), data)
    where = {"sequencer": address, "history": folder}
    try:
        await site.start()
        async with (
            motet.ordering.connect("memory://killed", **where) as one,
            motet.ordering.connect("memory://killed", **where) as other,
            one.subscribe("a", "b") as first,
            other.subscribe("b", "a") as second,
        ):
            for client, topic in ((one, "a"), (other, "b")):
                await asyncio.gather(*(client.send(topic, b"%d" % n) for n in range(EACH)))
            site.kill()
            await site.ended()
            await site.start()
            for client, topic in ((one, "b"), (other, "a")):
                await asyncio.gather(*(client.send(topic, b"+%d" % n) for n in range(EACH)))
            for client in (one, other):
                await client.flush(timeout=PATIENCE_S)
            got = [
                [(await stream.get(timeout=PATIENCE_S)).payload for _ in range(4 * EACH)]
                for stream in (first, second)
            ]
            assert got[0] == got[1]
        assert await site.stop()
    finally:
        site.end()


def rename(source: Path, folder: Path, run: str) -> None:
    for path in source.glob("*/*.parquet"):
        rows = [{**row, "run": run} for row in pq.read_table(path).to_pylist()]
        into = folder / path.parent.name
        into.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(path)), into / path.name)


def tamper(folder: Path) -> None:
    """The live run again, under another name; one stream was given two events the other way round,
    and one event less."""
    for path in [*folder.glob("*/ordering-*.parquet"), *folder.glob("*/site-*.parquet")]:
        rows = [{**row, "run": "tampered"} for row in pq.read_table(path).to_pylist()]
        if path.parent.name == "order_given":
            topics = [row["topic"] for row in rows]
            at = next(i for i, topic in enumerate(topics) if topics[i + 1] != topic)
            rows[at]["nth"], rows[at + 1]["nth"] = rows[at + 1]["nth"], rows[at]["nth"]
            rows = [row for row in rows if (row["topic"], row["number"]) != ("answers", EACH // 2)]
        changed = pa.Table.from_pylist(rows, pq.read_schema(path))
        pq.write_table(changed, path.with_name(f"tampered-{path.name}"))


def test_simulated_runs_are_judged_as_the_simulator_does(judged: JudgedRuns) -> None:
    assert {run: judged.audit.broken(run) for run in judged.broken} == judged.broken


def test_each_bug_that_can_show_in_a_history_does(judged: JudgedRuns) -> None:
    assert {bug for bug in BUGS if not judged.broken[bug]} == set()
    assert set.union(*judged.broken.values()) == JUDGED
    assert [judged.broken[f"seed {seed}"] for seed in CLEAN_SEEDS] == [set()] * len(CLEAN_SEEDS)


def test_a_clean_ordered_history_raises_nothing(judged: JudgedRuns) -> None:
    assert judged.audit.kinds("clean") == set()


@pytest.mark.parametrize("kind", ORDER_PLANTS)
def test_the_audit_finds_each_planted_violation_of_order(judged: JudgedRuns, kind: str) -> None:
    assert judged.audit.broken(kind) == set(ORDER_PLANTS[kind][0].split())
    assert kind in judged.audit.kinds(kind)
    assert all(each.examples for each in judged.audit.findings)


@pytest.mark.parametrize("case", ORDER_EXCUSES)
def test_the_audit_excuses_what_streams_were_told(judged: JudgedRuns, case: str) -> None:
    assert judged.audit.kinds(case) == set()


def test_real_clients_and_sites_record_a_clean_history(judged: JudgedRuns) -> None:
    assert judged.audit.kinds("") == set()


def test_a_site_that_was_killed_leaves_a_clean_history(judged: JudgedRuns) -> None:
    assert judged.audit.kinds("killed") == set()


def test_the_audit_finds_what_is_wrong_with_a_recording(judged: JudgedRuns) -> None:
    assert {"effect before cause", "not given"} <= judged.audit.kinds("tampered")


@pytest.mark.parametrize("jitter_s", [0.0, 0.01])
def test_a_large_ordered_history_is_clean_whatever_the_clocks_say(
    spark: SparkSession, tmp_path: Path, jitter_s: float
) -> None:
    scale = OrderScale(12_000, streams=4, topics=6, jitter_s=jitter_s, parts=2)
    generate_order(spark, tmp_path / "history", scale)
    found = audit(spark, tmp_path / "history", small_bytes=SMALL_BYTES)
    assert found.findings == []
    assert found.checked["notification-order"] == found.checked["causality"] == 12_000
    assert found.checked["numbers"] == found.checked["completeness"] == 3000
