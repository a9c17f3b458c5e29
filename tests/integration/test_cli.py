"""The command line with real processes: an overlay is started, used, hurt and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motet.broker.overlay.topology import BrokerPlace, Topology
from motet.fleet.process import free_ports
from tests.waiting import PATIENCE_S, wait_until

MOTET = (sys.executable, "-m", "motet")


def line(brokers: int) -> Topology:
    ports = free_ports(brokers)
    places = tuple(
        BrokerPlace(f"B{i + 1}", f"motet://127.0.0.1:{port}", (f"B{i}",) if i else ())
        for i, port in enumerate(ports)
    )
    return Topology("test", places, heartbeat_s=0.5)


def motet(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MOTET, *arguments], input=given, capture_output=True, text=True, timeout=PATIENCE_S
    )


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*MOTET, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def subscribed(process: subprocess.Popen[str]) -> None:
    """Wait for the remark that a subscription is effective."""
    assert process.stderr is not None
    assert "effective" in process.stderr.readline()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Overlay:
    def __init__(self, process: subprocess.Popen[str], ready: dict[str, Any], file: Path) -> None:
        self.process = process
        self.ready = ready
        self.file = file
        self.urls = [broker["address"] for broker in ready["brokers"]]
        self.pids = [broker["pid"] for broker in ready["brokers"]]

    def status(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(motet("status", str(self.file), "--json").stdout)
        return state


@contextlib.contextmanager
def overlay(directory: Path) -> Iterator[Overlay]:
    file = directory / "overlay.toml"
    file.write_text(line(3).to_toml())
    with started("up", str(file), "--dir", str(directory / "run"), "--json") as process:
        ready = json.loads(next_line(process))
        yield Overlay(process, ready, file)
    assert process.returncode == 0
    for pid in (broker["pid"] for broker in ready["brokers"]):
        assert not alive(pid)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Overlay]:
    with overlay(tmp_path_factory.mktemp("cli")) as running:
        yield running


# ── up, status ───────────────────────────────────────────────────────────────────────────


def test_up_prints_the_address_of_each_broker(three: Overlay) -> None:
    assert three.ready["ready"] is True
    assert [b["broker"] for b in three.ready["brokers"]] == ["B1", "B2", "B3"]
    assert [b["links"] for b in three.ready["brokers"]] == [["B2"], ["B1", "B3"], ["B2"]]
    assert all(alive(pid) for pid in three.pids)


def test_status_shows_the_whole_overlay(three: Overlay) -> None:
    state = three.status()
    assert state["unreachable"] == []
    assert [broker["broker"] for broker in state["brokers"]] == ["B1", "B2", "B3"]
    for broker in state["brokers"]:
        assert {"links", "tables", "sessions", "counts", "traffic", "connections"} <= set(broker)
        assert all(link["phase"] == "up" for link in broker["links"].values())


def test_status_for_people(three: Overlay) -> None:
    shown = motet("status", three.urls[1])
    assert shown.returncode == 0
    for word in ("brokers", "tables", "links", "queues", "B2", three.urls[1]):
        assert word in shown.stdout


def test_watching_goes_on_until_the_reader_leaves(three: Overlay) -> None:
    with started("status", three.urls[0], "--watch", "--every", "0.1", "--json") as watching:
        first, second = json.loads(next_line(watching)), json.loads(next_line(watching))
    assert first["brokers"][0]["broker"] == second["brokers"][0]["broker"] == "B1"
    assert watching.returncode == 0


def test_up_refuses_a_port_in_use_and_leaves_nothing(three: Overlay, tmp_path: Path) -> None:
    taken = three.urls[0].rpartition(":")[2]
    (free,) = free_ports(1)
    file = tmp_path / "other.toml"
    file.write_text(
        f'[brokers.C1]\nlisten = "127.0.0.1:{free}"\n'
        f'[brokers.C2]\nlisten = "127.0.0.1:{taken}"\nlinks = ["C1"]\n'
    )
    for before in ([], [tmp_path / "deep" / "run" / "C1.log"]):
        for path in before:
            path.parent.mkdir(parents=True)
            path.write_text("from an earlier run\n")
        refused = motet("up", str(file), "--dir", str(tmp_path / "deep" / "run"), "--json")
        assert refused.returncode == 2
        assert refused.stdout == ""
        assert refused.stderr.startswith("error: C2 did not start: port")
        assert "in use" in refused.stderr
        assert "the files created in" in refused.stderr
        left = [path for path in (tmp_path / "deep").rglob("*") if not path.is_dir()]
        assert left == before
        assert (tmp_path / "deep").exists() == bool(before)
    assert before[0].read_text().startswith("from an earlier run\n")
    assert three.status()["unreachable"] == []


# ── pub, sub ─────────────────────────────────────────────────────────────────────────────


def test_events_cross_the_overlay_with_their_types(three: Overlay) -> None:
    wanted = "test = 'types' and price > 10"
    with started("sub", three.urls[0], wanted, "--count", "2", "--json") as sub:
        subscribed(sub)
        words = ["test=types", "price=12.5", "n=3", "code:=3", "on=true", "at=2026-01-31T09:30:00Z"]
        sent = motet("pub", three.urls[2], *words, "--payload", "hello", "--count", "2", "--json")
        assert sent.returncode == 0, sent.stderr
        assert json.loads(sent.stdout)["published"] == 2
        events = [json.loads(next_line(sub)) for _ in range(2)]
        assert sub.wait(PATIENCE_S) == 0
    assert events[0]["attributes"] == {
        "test": "types",
        "price": 12.5,
        "n": 3,
        "code": "3",
        "on": True,
        "at": {"timestamp": "2026-01-31T09:30:00Z"},
    }
    assert events[0]["payload"] == "hello"
    assert [event["sequence"] for event in events] == [1, 2]


def test_pub_publishes_the_json_that_sub_prints(three: Overlay) -> None:
    lines = "".join(
        json.dumps({"attributes": {"test": "copy", "n": n}, "payload": "x"}) + "\n"
        for n in range(100)
    )
    with started("sub", three.urls[1], "test = 'copy'", "--count", "200", "--json") as sub:
        subscribed(sub)
        assert motet("pub", three.urls[0], given=lines).returncode == 0
        first = [next_line(sub) for _ in range(100)]
        again = motet("pub", three.urls[2], "--json", given="".join(first))
        assert again.returncode == 0, again.stderr
        second = [next_line(sub) for _ in range(100)]
    numbers = [json.loads(text)["attributes"]["n"] for text in (*first, *second)]
    assert numbers == [*range(100), *range(100)]


def test_sub_for_people(three: Overlay) -> None:
    with started("sub", three.urls[0], "test = 'people'", "--count", "1") as sub:
        subscribed(sub)
        motet("pub", three.urls[0], "test=people", "text=two words", "--client", "anna")
        assert next_line(sub) == 'anna#1  test=people  text="two words"\n'


def test_a_wrong_line_is_named_and_what_came_before_is_published(three: Overlay) -> None:
    refused = motet("pub", three.urls[0], given='{"a": 1}\n{"a": \n')
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: line 2: ")


def test_an_event_outside_the_advertised_space_is_refused(three: Overlay) -> None:
    refused = motet("pub", three.urls[0], "symbol=ACME", "--advertise", "symbol = 'OTHER'")
    assert refused.returncode == 2
    assert "advertise it first" in refused.stderr
    assert "hint: " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_timeout_without_enough_events_is_status_1(three: Overlay) -> None:
    late = motet("sub", three.urls[0], "test = 'nobody'", "--count", "1", "--timeout", "0.2")
    assert late.returncode == 1
    assert "0 of 1 events" in late.stderr
    fine = motet("sub", three.urls[0], "test = 'nobody'", "--timeout", "0.2", "--json")
    assert (fine.returncode, fine.stdout) == (0, "")


def test_a_reader_that_leaves_is_no_error(three: Overlay) -> None:
    with started("sub", three.urls[0], "test = 'pipe'", "--json") as sub:
        subscribed(sub)
        assert sub.stdout is not None
        sub.stdout.close()
        motet("pub", three.urls[0], "test=pipe", "--count", "50")
        assert sub.wait(PATIENCE_S) == 0
        assert sub.stderr is not None
        assert sub.stderr.read() == ""
        sub.stdout = None


def test_two_clients_with_one_id(three: Overlay) -> None:
    with started("sub", three.urls[0], "test = 'twins'", "--client", "twin") as first:
        subscribed(first)
        with started("sub", three.urls[0], "test = 'twins'", "--client", "twin") as second:
            subscribed(second)
            assert first.wait(PATIENCE_S) == 1
            assert first.stderr is not None
            assert "hint: choose another --client" in first.stderr.read()


# ── broker ───────────────────────────────────────────────────────────────────────────────


def test_a_broker_by_itself_and_its_port_in_use() -> None:
    here = ["--listen", "127.0.0.1:0", "--durability", "volatile"]
    with started("broker", "--name", "B1", *here, "--json") as broker:
        ready = json.loads(next_line(broker))
        assert ready["broker"] == "B1"
        assert json.loads(motet("status", ready["address"], "--json").stdout)["brokers"]
        second = motet("broker", "--name", "B2", "--listen", ready["address"])
        assert second.returncode == 2
        assert "in use" in second.stderr
    assert broker.returncode == 0


def test_a_broker_ends_with_the_process_that_started_it() -> None:
    command = [*MOTET, "broker", "--name", "B1", "--listen", "127.0.0.1:0"]
    command += ["--durability", "volatile", "--while-stdin"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0


# ── trouble ──────────────────────────────────────────────────────────────────────────────


def test_a_broker_that_dies_is_restarted_and_nothing_outlives_up(tmp_path: Path) -> None:
    with overlay(tmp_path) as running:
        os.kill(running.pids[1], signal.SIGKILL)
        assert running.process.stderr is not None
        died, back = running.process.stderr.readline(), running.process.stderr.readline()
        assert died.startswith(f"B2 (pid {running.pids[1]}) died of SIGKILL; restarting in")
        assert back.startswith("B2 is back")
        pids = [broker["process"]["pid"] for broker in running.status()["brokers"]]
        assert pids[1] != running.pids[1]
        # Killed outright, `up` cannot stop its brokers: they notice themselves.
        running.process.kill()
        running.process.wait()
        wait_until(lambda: not any(alive(pid) for pid in pids))
        running.process.returncode = 0


# ── sim, bench ───────────────────────────────────────────────────────────────────────────


def test_sim_prints_the_agreed_shape_and_repeats_itself() -> None:
    first, second = (
        motet("sim", "--seeds", "0-1", "--no-mutations", "--jobs", jobs, "--json")
        for jobs in ("1", "2")
    )
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert set(told) == {
        "seeds",
        "steps",
        "faults",
        "checked",
        "violations",
        "mutations",
        "trace_hash",
    }
    assert set(told["mutations"]) == {"planted", "caught"}
    assert told["violations"] == []
    assert json.loads(second.stdout) == told


def test_sim_tells_a_story() -> None:
    told = motet("sim", "--replay", "1")
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("seed 1")
    assert "no violations" in told.stdout


PLAN = """
[[step]]
id = "begins"
client = "new"
do = "subscribe"
filter = "kind = 'order'"
name = "orders"

[[step]]
client = "old"
do = "unsubscribe"
name = "kind = 'order'"
after = ["begins"]
"""


def test_a_stream_is_handed_over_by_hand(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    ports = free_ports(1)
    url = f"motet://127.0.0.1:{ports[0]}"
    data = ("--data", str(tmp_path / "B1"), "--durability", "volatile")
    with started("broker", "--name", "B1", "--listen", url, *data, "--json") as broker:
        assert broker.stdout is not None
        assert json.loads(broker.stdout.readline())["broker"] == "B1"
        sub = ("sub", url, "--participate", "--json", "--client")
        with (
            started(*sub, "old", "kind = 'order'") as old,
            started(*sub, "new", "assign = 'new'", "--count", "1") as new,
        ):
            for each in (old, new):
                assert each.stderr is not None
                assert "subscribed" in each.stderr.readline()
            told = json.loads(motet("tx", "plan", url, str(plan), "--explain", "--json").stdout)
            assert told["kind"] == "static"
            motet("pub", url, "kind=order", "n=1")
            assert old.stdout is not None
            assert json.loads(old.stdout.readline())["attributes"]["n"] == 1
            done = json.loads(motet("tx", "plan", url, str(plan), "--json").stdout)
            assert done["outcome"] == "committed"
            motet("pub", url, "kind=order", "n=2")
            assert new.stdout is not None
            assert json.loads(new.stdout.readline())["attributes"]["n"] == 2
        assert motet("tx", "outcome", url, done["transaction"]).stdout.strip() == "committed"
        assert motet("tx", "outcome", url, "nobody/B1-1.1/9").returncode == 1
