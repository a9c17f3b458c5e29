"""A user interrupts a command."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from motet.cli import interrupt
from motet.cli.console import INTERRUPTED
from motet.errors import MotetError
from tests.processes import descendants, living
from tests.unit.cli.blocking_command import job
from tests.waiting import PATIENCE_S

STUBBORN = (sys.executable, "-m", "tests.unit.cli.blocking_command")
ROOT = Path(__file__).parents[3]


def start(*words: str) -> tuple[subprocess.Popen[str], list[int]]:
    """And the processes that it has started."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*STUBBORN, *words], cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    return process, [int(each) for each in process.stdout.readline().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_prints_one_line_and_ends_its_child_processes(
    number: signal.Signals,
) -> None:
    process, family = start("once")
    assert len(family) == 2
    assert set(family) <= descendants(process.pid)
    process.send_signal(number)
    assert process.communicate(timeout=PATIENCE_S) == ("", "interrupted; nothing is lost\n")
    assert process.returncode == INTERRUPTED
    assert not living(family)


def test_an_interrupt_may_end_only_the_first_part_of_a_command() -> None:
    process, family = start("twice")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == "enough of the first part\n"
    assert process.stdout.readline() == "the second part\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S) == ("", "interrupted; nothing is lost\n")
    assert process.returncode == INTERRUPTED
    assert not living(family)


def test_an_interrupted_command_clears_the_line_of_the_terminal() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*STUBBORN, "once"], cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == INTERRUPTED
    process.stdout.close()
    said = os.read(ours, 1000).decode()
    os.close(ours)
    assert said == f"{interrupt.CLEAR_LINE}interrupted; nothing is lost\r\n"


def test_an_interruptible_function_restores_the_signal_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert job("done") == 7
    with pytest.raises(MotetError, match="it broke"):
        job("broken")
    assert signal.getsignal(signal.SIGINT) is before
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(job("done")))
    other.start()
    other.join()
    assert found == [7]
