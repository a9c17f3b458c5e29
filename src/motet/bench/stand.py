"""The test stand: broker processes to be measured, and what they cost."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from motet.errors import UnavailableError

STOP_BOUND_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stand:
    """One broker under test."""

    name: str
    address: str
    pid: int

    def cpu_s(self) -> float:
        return cpu_s(self.pid)


def cpu_s(pid: int) -> float:
    """CPU seconds, of user and system, that a process has used so far.

    The scheduler counts nanoseconds where it is asked to; the ticks of 10 ms that every Linux
    has would show in the third digit of a short run.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        spent_ns = [int((task / "schedstat").read_text().split()[0]) for task in tasks]
        if sum(spent_ns):
            return sum(spent_ns) / 1e9
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return _cpu_s_by_ps(pid)
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS_PER_S


def _cpu_s_by_ps(pid: int) -> float:
    """Where there is no /proc. `[[dd-]hh:]mm:ss.cc`"""
    shown = subprocess.run(
        ["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True
    ).stdout.strip()
    days, _, clock = shown.rpartition("-")
    total = float(days or 0)
    for scale, part in zip((24, 60, 60), ("0:0:" + clock).split(":")[-3:], strict=True):
        total = total * scale + float(part)
    return total


def rss_bytes(pid: int) -> int:
    """What a process holds in memory now."""
    shown = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True
    ).stdout
    return int(shown) * 1024


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty folder for a while, on the disk that is to be measured."""
    place = os.environ.get("MOTET_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="motet-bench-", dir=place) as name:
        yield Path(name)


@contextlib.contextmanager
def broker(name: str = "B1", *links: str, data: Path | None = None) -> Iterator[Stand]:
    """A broker process on a free port; `links` as `motet broker --link` takes them. Without
    `data` it keeps nothing."""
    command = [sys.executable, "-m", "motet", "broker", "--name", name, "--while-stdin", "--json"]
    command += ["--durability", "volatile"] if data is None else ["--data", str(data)]
    command += ["--listen", "motet://127.0.0.1:0"]
    for link in links:
        command += ["--link", link]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise UnavailableError(f"broker {name} did not start: {process.stderr.read()!r}")
            yield Stand(name, json.loads(line)["address"], process.pid)
        finally:
            _stop(process)


@contextlib.contextmanager
def line(brokers: int, data: Sequence[Path] = ()) -> Iterator[list[Stand]]:
    """B1 – B2 – … on free ports, each dialled by the next one. `data` are their folders; without
    them they keep nothing."""
    with contextlib.ExitStack() as stack:
        stands: list[Stand] = []
        for number in range(1, brokers + 1):
            links = [f"B{number + 1}"] if number < brokers else []
            if stands:
                links.append(f"{stands[-1].name}={stands[-1].address}")
            folder = data[number - 1] if data else None
            stands.append(stack.enter_context(broker(f"B{number}", *links, data=folder)))
        yield stands


class Worker:
    """A load generator: `python -m motet.bench.MODULE …`, whose lines are JSON."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def hear(self) -> dict[str, Any]:
        """Its next line; waits for it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            said = self._process.stderr.read().decode(errors="replace").strip()
            raise UnavailableError(f"a load generator failed: {said.splitlines()[-1:]}")
        heard: dict[str, Any] = json.loads(line)
        return heard


@contextlib.contextmanager
def worker(module: str, *arguments: object) -> Iterator[Worker]:
    command = [sys.executable, "-m", f"motet.bench.{module}", *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield Worker(process)
        except BaseException:
            process.kill()
            raise
        finally:
            _stop(process)


def hear_from(module: str, *arguments: object) -> dict[str, Any]:
    """The one line of a load generator that says only one."""
    with worker(module, *arguments) as working:
        return working.hear()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=STOP_BOUND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
