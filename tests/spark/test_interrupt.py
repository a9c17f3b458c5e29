"""Commands that use Spark, interrupted at any time: one line, and no process is left."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from motet.cli.console import FINE, INTERRUPTED
from motet.cli.interrupt import ANEW
from tests.processes import descendants, living

pytestmark = pytest.mark.soak

MOTET = (sys.executable, "-m", "motet")
SOON_S = 2.0
"""Beyond that, whoever interrupts does it again."""
DEMO = ("demo", "--size", "50", "--seconds", "20", "--report", "out")
WORKLOAD = ("pipeline", "workload", "workflow", "5000000", "--out", "out")


def typed(process: subprocess.Popen[bytes], terminal: int) -> str:
    """All that comes behind Ctrl-C, which a terminal sends to everybody in the foreground."""
    family = descendants(process.pid)
    os.write(terminal, b"\x03")
    began_s, said = time.monotonic(), b""
    while True:
        try:
            said += os.read(terminal, 4096)
        except OSError:  # nobody has it open any more
            break
    assert process.wait(SOON_S) == INTERRUPTED
    assert time.monotonic() - began_s < SOON_S
    assert not living(family)
    # A bar may have been drawn while it was typed.
    return said.decode().rpartition("\x1b[?25h")[2].strip()


@pytest.mark.parametrize("words", [DEMO, WORKLOAD], ids=lambda words: words[-5])
@pytest.mark.parametrize("after_s", [3, 6, 10, 20])
def test_an_interrupt_at_a_terminal_ends_the_command(
    words: tuple[str, ...], after_s: int, tmp_path: Path
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*MOTET, *words], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # to be in control of it
    )  # fmt: skip
    os.close(theirs)
    until_s = time.monotonic() + after_s
    os.set_blocking(ours, False)
    while time.monotonic() < until_s:
        time.sleep(0.05)
        try:
            os.read(ours, 65536)
        except BlockingIOError:
            continue
    os.set_blocking(ours, True)
    assert typed(process, ours) == ANEW
    os.close(ours)


def test_an_interrupted_job_restarts_from_scratch(tmp_path: Path) -> None:
    """And a program that is told to end does the same."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([*MOTET, *WORKLOAD], cwd=tmp_path, stdout=pipe, stderr=pipe)
    folder = tmp_path / "out"
    while not (folder / "_temporary").exists():
        assert process.poll() is None
        time.sleep(0.05)
    family = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SOON_S)
    assert process.returncode == INTERRUPTED
    assert said.decode().splitlines()[-1] == ANEW
    assert not living(family)

    few = [each if each != WORKLOAD[3] else "50" for each in WORKLOAD]
    again = subprocess.run([*MOTET, *few], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == FINE
    assert "rows of workflow" in again.stdout
    assert not (folder / "_temporary").exists()
