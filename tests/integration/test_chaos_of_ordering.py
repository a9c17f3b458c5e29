"""`motet chaos --profile ordering`: sites, clients and NATS as processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from motet.chaos.cast import LASTS_S, ORDER_DECK, TARGETS, OrderChaosPlan
from motet.chaos.member import DIARY
from motet.chaos.memoirs import Memoirs
from motet.cli import main
from motet.cli.console import MISUSE
from motet.testing.ordering.checkers import causality, completeness, notification_order, numbers
from tests.waiting import PATIENCE_S, wait_until

COMMAND = (sys.executable, "-m", "motet", "chaos", "--profile", "ordering", "--sites", "2")


def processes_in(directory: Path) -> list[int]:
    """Processes that work in this folder, or were started for it."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                words = (each / "cmdline").read_bytes().decode(errors="replace")
                where = os.readlink(each / "cwd")
                state = (each / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and (str(directory) in words or where.startswith(str(directory))):
                found.append(int(each.name))
    return [pid for pid in found if pid != os.getpid()]


def judged(directory: Path) -> dict[str, list[str]]:
    """What the checkers find in the diaries of a run that is over."""
    diaries = sorted(directory.glob(f"*{DIARY}"))
    last = {path.name.partition("-")[0]: path for path in diaries}
    memoirs = Memoirs("causal")
    memoirs.read((path.stem, path, path not in last.values()) for path in diaries)
    history = memoirs.history
    checkers = (notification_order, causality, numbers, completeness)
    return {each.GUARANTEE: each.check(history).violations for each in checkers}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small run; its report is in the folder."""
    directory = tmp_path_factory.mktemp("chaos") / "run"
    options = ("--seconds", "8", "--seed", "11", "--dir", str(directory), "--json")
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (directory / "report.json").write_text(done.stdout)
    return directory


def test_order_survives_kills_of_sites_clients_and_the_service(ran: Path) -> None:
    told = json.loads((ran / "report.json").read_text())
    assert told["kept"] is True
    assert told["violations"] == []
    assert (told["sites"], told["seconds"], told["seed"]) == (2, 8.0, 11)
    assert told["faults"]["kill_site"] > 0
    figures = told["ordering"]
    assert figures["publications"] >= figures["published"] > 0
    assert figures["delivered"] > figures["published"]
    assert figures["changes"] > 0
    assert told["longest_silence_s"] > 0.0
    guarantees = {"notification-order", "causality", "numbers", "completeness", "settles"}
    assert all(told["checked"][guarantee] > 0 for guarantee in guarantees)
    assert processes_in(ran) == []
    assert "everything is at rest" in (ran / "story.txt").read_text()


def test_diaries_that_contradict_each_other_are_found(ran: Path, tmp_path: Path) -> None:
    """The judgement itself, on a run in which nothing is wrong."""
    assert not any(judged(ran).values())
    for path in ran.glob(f"*{DIARY}"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    diaries = sorted(tmp_path.glob(f"*{DIARY}"))
    living = {each.name.partition("-")[0]: each for each in diaries}
    path = max(living.values(), key=lambda each: each.stat().st_size)
    lines = path.read_bytes().splitlines(keepends=True)
    given = [at for at, line in enumerate(lines) if line.startswith(b'["given"')]
    first, second = next(
        (one, other)
        for one, other in pairwise(given)
        if json.loads(lines[one])[2:4] == json.loads(lines[other])[2:4]
    )
    swapped = list(lines)
    swapped[first], swapped[second] = lines[second], lines[first]
    path.write_bytes(b"".join(swapped))
    assert judged(tmp_path)["notification-order"]
    outcomes = [
        json.loads(line)
        for diary in diaries
        for line in diary.read_bytes().splitlines()
        if line.startswith(b'["outcome"')
    ]
    published = {event for _, event, error, _ in outcomes if not error}
    missing = next(
        event for event in (json.loads(lines[at])[5] for at in given) if event in published
    )
    path.write_bytes(b"".join(line for line in lines if not _gives(line, missing)))
    assert judged(tmp_path)["completeness"]
    path.write_bytes(b"".join(lines) + b'["given", 1.0')
    assert not any(judged(tmp_path).values()), "a torn line is that of a process that was killed"


def _gives(line: bytes, event: int) -> bool:
    return line.startswith(b'["given"') and bool(json.loads(line)[5] == event)


def test_an_interrupted_run_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*COMMAND, "--json"], env=environment)
    try:
        wait_until(lambda: any(tmp_path.glob(f"motet-chaos-*/*{DIARY}")))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    finally:
        process.kill()
        process.wait()
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_all_processes_end_when_it_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    process = subprocess.Popen([*COMMAND, "--dir", str(directory), "--json"])
    try:
        wait_until(lambda: any(directory.glob(f"*{DIARY}")))
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: processes_in(directory) == [])


def test_faults_are_drawn_beforehand_and_each_kind_comes() -> None:
    plan = OrderChaosPlan(seconds=60.0, seed=5)
    strikes = plan.strikes()
    assert strikes == plan.strikes()
    assert strikes[0].kind == "kill_site"
    assert {each.kind for each in strikes} == set(ORDER_DECK) == set(TARGETS) == set(LASTS_S)
    assert all(0.0 < each.at_s < plan.seconds for each in strikes)
    assert strikes != OrderChaosPlan(seconds=60.0, seed=6).strikes()


def test_the_cast_can_have_standbys_and_a_witness() -> None:
    plain = [each.name for each in OrderChaosPlan(sites=2, clients=2).cast()]
    assert plain == ["nats", "S1", "S2", "C1", "C2"]
    roles = [each.role for each in OrderChaosPlan(sites=2, clients=1, standbys=True).cast()]
    assert roles == ["service", "witness", "site", "standby", "site", "standby", "client"]


def test_options_of_brokers_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["chaos", "--profile", "ordering", "--covering"]) == MISUSE
    assert "not brokers" in capsys.readouterr().err
