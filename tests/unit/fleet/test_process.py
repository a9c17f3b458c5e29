"""Broker processes end when they are told to, and never outlive the process that started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from motet.fleet.process import HOST, PORTS, BrokerProcess, StartFailed, free_ports
from tests.processes import living
from tests.waiting import PATIENCE_S

KEEPS_NOTHING = ("--durability", "volatile")

DYING_PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from motet.fleet.process import BrokerProcess

def state(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0]

async def main():
    options = ("--durability", "volatile", "--listen", "127.0.0.1:0")
    broker = BrokerProcess("B1", options, Path(sys.argv[1]))
    await broker.start()
    broker.pause()
    while {state(task) for task in Path(f"/proc/{broker.pid}/task").iterdir()} != {"T"}:
        await asyncio.sleep(0.01)  # only a process that stands still entirely counts as paused
    await asyncio.sleep(0.05)
    print(broker.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def broker(directory: Path, port: int = 0) -> BrokerProcess:
    return BrokerProcess("B1", (*KEEPS_NOTHING, "--listen", f"{HOST}:{port}"), directory)


async def test_a_broker_process_starts_pauses_stops_and_can_be_killed(tmp_path: Path) -> None:
    made = broker(tmp_path)
    assert not made.running
    await made.start()
    assert living([made.pid])
    assert (made.running, made.expected, made.exit_status) == (True, False, None)
    made.pause()
    made.resume()
    assert not made.expected
    assert await made.stop()
    assert (made.running, made.expected, made.exit_status) == (False, True, 0)
    await made.start()
    assert (made.starts, made.expected) == (2, False)
    made.kill()
    await made.ended()
    assert (made.expected, made.exit_status) == (True, -signal.SIGKILL)
    made.end()


async def test_a_paused_broker_can_be_stopped(tmp_path: Path) -> None:
    made = broker(tmp_path)
    await made.start()
    made.pause()
    assert await made.stop()
    assert made.exit_status == 0
    made.end()


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        made = broker(tmp_path, taken.getsockname()[1])
        with pytest.raises(StartFailed, match=r"B1 did not start: .*in use") as found:
            await made.start()
        assert found.value.is_misuse
        assert found.value.hint
        made.end()


def test_no_broker_outlives_a_parent_that_is_killed_not_even_a_paused_one(tmp_path: Path) -> None:
    parent = subprocess.run(
        [sys.executable, "-c", DYING_PARENT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    orphan = int(parent.stdout)
    deadline = time.monotonic() + PATIENCE_S
    while living([orphan]):
        if time.monotonic() > deadline:
            os.kill(orphan, signal.SIGKILL)
            pytest.fail("the paused broker is still there")
        time.sleep(0.05)


def test_ports_are_free_and_out_of_the_way() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(port in PORTS for port in ports)
