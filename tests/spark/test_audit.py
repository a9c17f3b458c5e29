"""The audit finds all that is wrong with a history, and nothing else.

One audit judges everything here: simulated runs, generated ones, and spoilt ones, each as a run of
its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import motet
from motet.audit.recorder import VARIABLE
from motet.audit.verdicts import GUARANTEES, Audit
from motet.chaos.plan import ChaosPlan
from motet.chaos.run import HISTORY, ChaosRun
from motet.spark.audit import audit, transactions
from motet.spark.audit.generator import Scale, generate
from motet.testing.history import write_history
from motet.testing.simulation import observe
from tests.spark.ground import Pair
from tests.spark.planted_violations import (
    BATCH_PLANTS,
    LATE_CUTS,
    MOVE_PLANTS,
    PLANTS,
    clean,
    spoilt,
    write,
)
from tests.waiting import PATIENCE_S

CLEAN = (
    ("delivery", 0), ("delivery", 1), ("transactions", 0), ("transactions", 2), ("crash", 1),
    ("mobility", 0), ("mobility", 1),
)  # fmt: skip
LATE_CUT = ("transactions", 609)
"""A client that stores its own cursors subscribes again before a log has cut for the end of its
first subscription."""
MUTATED = (
    ("delivery", "sequences-are-forgotten-in-a-restart", 11, 1.0),
    ("delivery", "trimmed-ticks-are-answered-as-silence", 0, 2.0),
    ("delivery", "cursors-are-lost-with-the-connection", 30, 1.0),
    ("delivery", "start-ticks-are-ignored", 18, 1.0),
    ("delivery", "own-cursors-are-ignored", 15, 10.0),
    ("delivery", "nobody-waits-for-a-quiet-pubend", 0, 1.0),
    ("transactions", "a-cut-is-made-again-after-a-restart", 17, 1.0),
    ("transactions", "starts-are-not-tentative", 0, 4.0),
    ("transactions", "the-order-of-a-block-is-ignored", 4, 1.0),
    ("transactions", "the-root-forgets-in-a-restart", 3, 1.0),
    ("transactions", "nobody-looks-at-what-was-read", 4, 1.0),
)
"""Profiles, bugs, the seeds from which on one shows them, and how long things go wrong."""
ORDERED = {"notification-order", "causality", "numbers", "completeness"}
"""Guarantees of order across topics: see `test_audit_of_ordering`."""
OF_OVERLAYS = set(GUARANTEES) - ORDERED
PLANTED_ONLY = {"moves"}
"""Guarantees that only planted violations break."""
CLEAN_S = 2.0
MOST_SEEDS = 40


@dataclass(frozen=True)
class Judged:
    audit: Audit
    broken: dict[str, set[str]]
    """By simulated run: what the checkers of the simulator say is broken."""


@pytest.fixture(scope="module")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    folder = tmp_path_factory.mktemp("history")
    broken: dict[str, set[str]] = {}
    for profile, seed in CLEAN:
        run = f"{profile}-{seed}"
        broken[run] = simulated(folder, run, profile, [seed], chaos_s=CLEAN_S)
    profile, seed = LATE_CUT
    broken["late cut"] = simulated(folder, "late cut", profile, [seed])
    for profile, mutation, seed, chaos_s in MUTATED:
        seeds = range(seed, seed + MOST_SEEDS)
        broken[mutation] = simulated(folder, mutation, profile, seeds, mutation, chaos_s=chaos_s)
    plant(folder)
    live(folder, tmp_path_factory.mktemp("live"))
    tamper(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            transactions, "FEW_RELATIONS", 0
        )  # so that relations are trimmed, few as they are
        return Judged(audit(spark, folder), broken)


def plant(folder: Path) -> None:
    worlds = {"clean": clean()}
    worlds |= {f"planted {kind}": spoilt(plant) for kind, (_, plant) in PLANTS.items()}
    worlds |= {f"batch {kind}": spoilt(plant) for kind, (_, plant) in BATCH_PLANTS.items()}
    worlds |= {f"move {kind}": spoilt(plant) for kind, plant in MOVE_PLANTS.items()}
    worlds |= {f"late cut, {case}": spoilt(plant) for case, (_, plant) in LATE_CUTS.items()}
    write(worlds, folder)


def simulated(
    folder: Path,
    run: str,
    profile: str,
    seeds: Sequence[int],
    mutation: str | None = None,
    **changes: Any,
) -> set[str]:
    """Write the history of the first of these seeds that breaks something, or of the last."""
    for seed in seeds:
        history, verdicts = observe(seed, profile, mutation, **changes)
        broken = {each.guarantee for each in verdicts if each.violations} & OF_OVERLAYS
        if broken:
            break
    write_history(history, folder, run)
    return broken


def live(folder: Path, data: Path) -> None:
    """Two brokers and four clients, which write down what they do, as the run without a name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder))
        with Pair(data) as pair:
            first, second = (broker.address for broker in pair.brokers)
            with (
                motet.connect_sync(first, client_id="reader") as reader,
                motet.connect_sync(second, client_id="merger", order="total") as merger,
            ):
                streams = [each.subscribe("n >= 0") for each in (reader, merger)]
                pair.publish(0, range(EACH))
                pair.publish(1, range(EACH, 2 * EACH), more="of the same")
                name = pair.transact(range(2 * EACH, 2 * EACH + IN_TRANSACTION))
                for stream in streams:
                    came = [
                        stream.get(timeout=PATIENCE_S) for _ in range(2 * EACH + IN_TRANSACTION)
                    ]
                    assert [each.transaction for each in came].count(name) == IN_TRANSACTION
            for client in pair.clients:
                client.close()
            for broker in pair.brokers:
                asyncio.run(broker.stop())


EACH, IN_TRANSACTION = 50, 6


def tamper(folder: Path) -> None:
    """The live run again, under another name, without one of its deliveries."""
    for path in [*folder.glob("*/client-*.parquet"), *folder.glob("*/broker-*.parquet")]:
        rows = pq.read_table(path).to_pylist()
        if path.parent.name == "deliveries" and rows[0]["op"].startswith("reader/"):
            del rows[EACH // 2]
        named = [{**row, "run": "tampered"} for row in rows]
        changed = pa.Table.from_pylist(named, pq.read_schema(path))
        pq.write_table(changed, path.with_name(f"tampered-{path.name}"))


def test_simulated_runs_are_judged_as_the_simulator_does(judged: Judged) -> None:
    assert {run: judged.audit.broken(run) for run in judged.broken} == judged.broken


def test_the_simulated_bugs_break_every_guarantee(judged: Judged) -> None:
    """Otherwise the comparison would say little."""
    assert set.union(*judged.broken.values()) | PLANTED_ONLY == OF_OVERLAYS


def test_a_clean_history_raises_nothing(judged: Judged) -> None:
    assert judged.audit.kinds("clean") == set()


def test_a_live_overlay_is_judged_by_what_it_writes_down(judged: Judged) -> None:
    assert judged.audit.kinds("") == set()


def test_the_audit_finds_an_event_lost_by_a_live_overlay(judged: Judged) -> None:
    assert judged.audit.kinds("tampered") == {"gap"}


@pytest.mark.parametrize("kind", PLANTS)
def test_the_audit_finds_each_planted_violation(judged: Judged, kind: str) -> None:
    _is_found(judged.audit, kind)


def _is_found(said: Audit, kind: str) -> None:
    found = [
        each
        for each in said.findings
        if (each.run, each.guarantee, each.kind) == (f"planted {kind}", PLANTS[kind][0], kind)
    ]
    assert len(found) == 1, kind
    assert found[0].count >= 1
    assert found[0].examples


@pytest.mark.parametrize("kind", BATCH_PLANTS)
def test_the_audit_finds_each_planted_violation_in_a_batch_of_a_sink(
    judged: Judged, kind: str
) -> None:
    assert judged.audit.kinds(f"batch {kind}") == {kind}
    assert judged.audit.broken(f"batch {kind}") == {BATCH_PLANTS[kind][0]}


@pytest.mark.parametrize("kind", MOVE_PLANTS)
def test_the_audit_finds_each_planted_violation_in_moves(judged: Judged, kind: str) -> None:
    assert judged.audit.broken(f"move {kind}") == {"moves"}
    assert kind in judged.audit.kinds(f"move {kind}")


def test_audit_excuses_event_owed_to_two_subscriptions_before_late_cut(judged: Judged) -> None:
    assert judged.broken["late cut"] == set()
    assert judged.audit.kinds("late cut") == set()


@pytest.mark.parametrize("case", LATE_CUTS)
def test_audit_excuses_second_delivery_only_if_log_owed_both(judged: Judged, case: str) -> None:
    assert judged.audit.kinds(f"late cut, {case}") == LATE_CUTS[case][0]


def test_a_chaos_run_with_moves_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    """Real brokers and clients, some of which are killed, record it."""
    for seconds in (2.0, 8.0, 32.0):  # on a busy machine clients do little in a few seconds
        folder = tmp_path / f"{seconds:g}"
        report = asyncio.run(ChaosRun(_moving(seconds), folder).report())
        assert report.kept, report.violations
        found = audit(spark, folder / HISTORY)
        assert found.findings == []
        if report.moves["done"]:
            break
    assert found.checked["moves"] > report.moves["done"] > 0
    assert found.checked["exactly-once"] > 0


def _moving(seconds: float) -> ChaosPlan:
    return ChaosPlan(
        brokers=2,
        seconds=seconds,
        seed=3,
        profile="mobility",
        strike_s=0.8,
        action_s=0.05,
        history=True,
    )


@pytest.mark.soak
def test_the_audit_finds_planted_violations_in_a_large_history(
    spark: SparkSession, tmp_path: Path
) -> None:
    plant(tmp_path)
    said = audit(spark, tmp_path, small_bytes=SMALL_BYTES)
    assert said.kinds("clean") == set()
    for kind in PLANTS:
        _is_found(said, kind)
    for kind in BATCH_PLANTS:
        assert said.kinds(f"batch {kind}") == {kind}
    for kind in MOVE_PLANTS:
        assert kind in said.kinds(f"move {kind}")


def test_a_large_history_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    """Its large tables are judged as those of large histories are, in several partitions."""
    scale = Scale(20_000, publishers=8, kinds=4, each=5, parts=2)
    generate(spark, tmp_path / "history", scale)
    found = audit(spark, tmp_path / "history", small_bytes=SMALL_BYTES)
    assert found.findings == []
    assert found.checked["exactly-once"] == 20_000
    assert found.checked["atomicity"] == 4


SMALL_BYTES = 20_000
