"""Broker processes end when they are told to, and never outlive whoever started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from motet.chaos.fleet import PORTS, BrokerProcess, free_ports
from motet.chaos.proxy import HOST
from motet.errors import UnavailableError

PATIENCE_S = 20.0
KEEPS_NOTHING = ("--durability", "volatile")

DYING_PARENT = """
import asyncio, os, signal, sys
from pathlib import Path
from motet.chaos.fleet import BrokerProcess, free_ports

def state(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0]

async def main():
    options = ("--durability", "volatile")
    broker = BrokerProcess("B1", free_ports(1)[0], options, Path(sys.argv[1]))
    await broker.start()
    broker.pause()
    while {state(task) for task in Path(f"/proc/{broker.pid}/task").iterdir()} != {"T"}:
        await asyncio.sleep(0.01)  # only a process that stands still entirely counts as paused
    await asyncio.sleep(0.05)
    print(broker.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    """A zombie is not: it waits for somebody to read its exit status."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    state = found.stdout.strip()
    return bool(state) and not state.startswith("Z")


def broker(directory: Path, port: int | None = None) -> BrokerProcess:
    return BrokerProcess("B1", port or free_ports(1)[0], KEEPS_NOTHING, directory)


async def test_a_life(tmp_path: Path) -> None:
    made = broker(tmp_path)
    assert not made.running
    await made.start()
    assert is_running(made.pid)
    assert (made.running, made.expected, made.status) == (True, False, None)
    made.pause()
    made.resume()
    assert not made.expected
    await made.stop()
    assert (made.running, made.expected, made.status) == (False, True, 0)
    await made.start()
    assert (made.starts, made.expected) == (2, False)
    made.kill()
    await made.ended()
    assert (made.expected, made.status) == (True, -signal.SIGKILL)
    made.end()


async def test_a_paused_broker_can_be_stopped(tmp_path: Path) -> None:
    made = broker(tmp_path)
    await made.start()
    made.pause()
    await made.stop()
    assert made.status == 0
    made.end()


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        made = broker(tmp_path, taken.getsockname()[1])
        with pytest.raises(UnavailableError, match=r"B1 did not start: .*in use"):
            await made.start()
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
    while is_running(orphan):
        if time.monotonic() > deadline:
            os.kill(orphan, signal.SIGKILL)
            pytest.fail("the paused broker is still there")
        time.sleep(0.05)


def test_ports_are_free_and_out_of_the_way() -> None:
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(port in PORTS for port in ports)
