"""`motet chaos`: an overlay of processes keeps its promises, and one that cannot is found out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from motet.broker.folder.journal import VOLATILE
from motet.chaos.absentees import Absentee, Absentees
from motet.chaos.chronicle import Chronicle
from motet.chaos.hands import Hand, HandOver, Hands, LiveStream
from motet.chaos.judgement import ChaosReport, judge
from motet.chaos.plan import ChaosPlan
from motet.chaos.run import ChaosRun
from motet.cli import main
from motet.cli.chaos import PROFILES
from motet.cli.console import FINE
from motet.errors import UnavailableError
from motet.testing.checkers.result import CheckResult
from tests.waiting import PATIENCE_S, wait_until

SHORT = ChaosPlan(
    brokers=2, seconds=3.0, seed=3, strike_s=0.8, timeouts_s=(3.0, 6.0), settle_s=30.0
)
COMMAND = (sys.executable, "-m", "motet", "chaos")


def brokers_in(directory: Path) -> list[int]:
    """Processes that were started for this folder and still run."""
    listed = subprocess.run(["ps", "-wweo", "pid=,stat=,args="], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [
        int(pid)
        for pid, state, *arguments in rows
        if f"--data {directory}/" in " ".join(arguments) and not state.startswith("Z")
    ]


def test_no_acknowledged_event_is_lost(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [*COMMAND, "--brokers", "3", "--seconds", "6", "--seed", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    assert (told["brokers"], told["seconds"], told["seed"]) == (3, 6.0, 1)
    assert told["kept"] is True
    assert told["violations"] == []
    assert told["faults"]["kill"] > 0
    assert told["recoveries"] > 0
    assert told["sessions"]["resumed"] > 0
    assert told["sessions"]["lost"] == 0
    assert told["operations"]["acknowledged"] > 0
    assert told["operations"]["lost"] == 0
    assert told["events"]["delivered"] > told["events"]["owed"] > 0
    assert told["events"]["lost"] == 0
    guarantees = {"answers", "completeness", "duplicates", "durability", "order", "routing"}
    assert all(told["checked"][guarantee] > 0 for guarantee in guarantees)
    assert told["directory"] is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_runs_and_is_told(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the least effort, and as people see it."""
    words = ["chaos", "--profile", profile, "--brokers", "2", "--seconds", "1", "--seed", "1"]
    assert main.run([*words, "--dir", str(tmp_path / "run")]) == FINE
    told = capsys.readouterr().out
    assert "violated" in told
    assert "VIOLATED" not in told


async def test_streams_change_hands_and_every_event_reaches_one_side(tmp_path: Path) -> None:
    plan = replace(SHORT, profile="transactions", brokers=3, seconds=3.0, strike_s=1.2)
    report = await ChaosRun(plan, tmp_path).report()
    assert report.kept, report.violations
    assert report.faults["kill"] > 0
    assert report.transactions["committed"] > 0
    assert all(report.checked[each] > 0 for each in ("hand-over", "together", "outcomes"))
    assert report.checked["routing"] > 0


MOBILITY = replace(
    SHORT,
    profile="mobility",
    brokers=3,
    seconds=6.0,
    strike_s=1.2,
    action_s=0.05,
    settle_s=60.0,
    history=True,
)


async def test_clients_move_and_nothing_is_lost_whatever_is_killed_on_their_way(
    tmp_path: Path,
) -> None:
    for longer in (1, 4, 16):  # on a busy machine clients do little in a few seconds
        seconds, folder = MOBILITY.seconds * longer, tmp_path / str(longer)
        made = ChaosRun(replace(MOBILITY, seconds=seconds), folder)
        report = await made.report()
        assert report.kept, report.violations
        told = report.to_json()["moves"]
        if told["asked"] > told["done"] > 0 and told["ordered_done"]:
            break
    assert told["asked"] > told["done"] > 0
    assert told["ordered_done"] > 0
    assert told["in_transit_longest_s"] > 0.0
    assert sum(count for name, count in told.items() if name.startswith("struck")) > 0
    guarantees = {"copies", "moves", "exactly-once", "hand-over", "outcomes", "routing"}
    assert all(report.checked[guarantee] > 0 for guarantee in guarantees)
    assert len({stay.broker for stays in made.chronicle.history.stays.values() for stay in stays})


async def test_a_session_at_two_brokers_or_none_is_found(tmp_path: Path) -> None:
    """The judgement itself, on the folders of a run in which nothing is wrong."""
    made = ChaosRun(replace(MOBILITY, seconds=2.0, strike_s=10.0), tmp_path)
    report = await made.report()
    assert report.kept, report.violations
    folders = {name: tmp_path / name for name in MOBILITY.tree.brokers}
    history = made.chronicle.history
    (client, epoch), broker = next(iter(history.places.items()))
    history.places[client, epoch] = "B2" if broker == "B1" else "B1"
    again = judge(MOBILITY, made.chronicle, folders)
    assert set(again.violated) == {"copies"}
    assert f"{epoch} of {client} is at {broker}" in again.violations[0].detail
    history.places[client, epoch] = broker
    history.living[0].epoch += "9"
    assert {"copies", "durability"} <= set(judge(MOBILITY, made.chronicle, folders).violated)


def test_the_judgement_of_durable_clients_finds_gaps_and_repetitions() -> None:
    absentees = Absentees(
        MOBILITY, Chronicle(MOBILITY.tree, covering=False, hop_s=1.0, lease_s=1.0), {}
    )
    absentees.made = 4
    cases = {
        (True, (0, 1), (2, 3)): [],
        (True, (0, 1), (1, 2, 3)): ["d has read 1 after 1"],
        (False, (0, 1), (1, 2, 3)): [],
        (False, (0, 1), (3,)): ["d has read 3 after 1"],
        (False, (0, 2), (3,)): ["d has read [0, 2], with gaps"],
        (True, (0,), (1, 2)): ["d has read up to 2 of 3"],
    }
    for (own, *parts), found in cases.items():
        absentee = Absentee("d", own, ["B1"], read=[n for part in parts for n in part])
        absentee.starts = [0, len(parts[0])]
        absentees.verdict = CheckResult("moves")
        absentees._judge(absentee)
        assert absentees.verdict.violations == found


def test_the_judgement_finds_lost_duplicated_and_split_events() -> None:
    """The judgement itself: each thing that could be wrong, on a run that never took place."""
    hands = Hands(SHORT, Chronicle(SHORT.tree, covering=False, hop_s=1.0, lease_s=1.0), {})
    right, left = Hand("h0", "B1", ""), Hand("h1", "B1", "")
    hands._hands = {"h0": right, "h1": left}
    stream = LiveStream("s0", right)
    stream.made = [(number, None) for number in range(6)]  # type: ignore[misc]
    hands._streams = [stream]
    right.stretches, left.stretches = [("s0", [0, 1, 2])], [("s0", [3, 4, 5])]
    assert hands._judge_streams().violations == []
    left.stretches = [("s0", [3, 5])]
    assert len(hands._judge_streams().violations) == 2, "a gap, and an event that is missing"
    left.stretches = [("s0", [2, 3, 4, 5])]
    assert hands._judge_streams().violations == ["event 2 of s0 came 2 times"]
    hands.attempts = [HandOver(0, "s0", "plan", "committed", "tx", marked=True)]
    hands._marks = [(0, 0, "tx"), (0, 1, "tx"), (0, 2, "tx")]
    assert hands._judge_marks().violations == []
    hands._marks = [(0, 1, "tx"), (0, 0, "tx"), (0, 2, "tx")]
    assert len(hands._judge_marks().violations) == 1
    hands._marks = [(0, 0, "tx"), (0, 1, "tx"), (0, 2, "tx")]
    hands.attempts[0].outcome = "aborted"
    assert len(hands._judge_marks().violations) == 1, "it was aborted, and somebody saw it"


def test_events_arrive_exactly_once_whichever_broker_is_killed(tmp_path: Path) -> None:
    plan = ChaosPlan(brokers=3, shape="line", profile="delivery", seconds=5.0, seed=2, strike_s=0.6)
    made, report = run(plan, tmp_path)
    assert report.kept, report.violations
    told = report.to_json()
    assert told["profile"] == "delivery"
    assert told["delivery"]["delivered"] > 0
    assert told["delivery"]["durable"] > 100
    assert told["delivery"]["owed"] > 0
    assert told["delivery"]["nacks"] > 0
    assert all(told["delivery"][wrong] == 0 for wrong in ("lost", "doubled", "out_of_order"))
    assert 0.0 < report.longest_silence_s < plan.seconds + plan.settle_s
    assert made.chronicle.faults["kill_middle"] > 0
    assert {event.session.broker for event in made.chronicle.history.events if event.session} == {
        "B1"
    }


def run(plan: ChaosPlan, directory: Path) -> tuple[ChaosRun, ChaosReport]:
    async def work() -> tuple[ChaosRun, ChaosReport]:
        made = ChaosRun(plan, directory)
        return made, await made.report()

    return asyncio.run(work())


def test_volatile_brokers_violate_durability(tmp_path: Path) -> None:
    # A lease that outlasts the restart of a broker on a busy machine: no lost session is excused.
    made, report = run(replace(SHORT, durability=VOLATILE, lease_s=100.0), tmp_path)
    assert not report.kept
    assert "durability" in report.violated
    assert report.sessions["lost"] > 0
    assert report.operations["lost"] > 0
    assert any("has forgotten the session" in found.detail for found in report.violations)
    assert made.chronicle.faults["kill"] > 0
    assert brokers_in(tmp_path) == []


def test_a_truncated_journal_violates_durability(tmp_path: Path) -> None:
    plan = replace(SHORT, snapshot_bytes=1 << 30)  # all is in the journal
    made, report = run(plan, tmp_path)
    assert report.kept, report.violations
    journal = tmp_path / "B1" / "journal"
    (journal / "closed").unlink()
    (segment,) = journal.glob("*.log")
    os.truncate(segment, segment.stat().st_size // 3)
    folders = {name: tmp_path / name for name in plan.tree.brokers}
    again = judge(plan, made.chronicle, folders)
    assert {"durability", "routing"} <= set(again.violated)
    assert again.operations["lost"] > 0
    assert again.checked["completeness"] == report.checked["completeness"]


def test_an_overlay_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "B1").write_text("no folder")
    with pytest.raises(UnavailableError, match=r"B1 did not start: .*B1"):
        run(SHORT, tmp_path)
    assert brokers_in(tmp_path) == []


def test_an_interrupted_run_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*COMMAND, "--brokers", "2", "--json"], env=environment)
    try:
        wait_until(lambda: any(tmp_path.glob("motet-chaos-*/B2/journal")))
        (directory,) = tmp_path.glob("motet-chaos-*")
        wait_until(lambda: len(brokers_in(directory)) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
        process.wait()
    assert brokers_in(directory) == []
    assert not directory.exists()


def test_brokers_end_when_it_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    process = subprocess.Popen([*COMMAND, "--brokers", "2", "--dir", str(directory), "--json"])
    try:
        wait_until(lambda: len(brokers_in(directory)) == 2)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: brokers_in(directory) == [])
