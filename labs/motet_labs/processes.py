"""The processes of a measurement: brokers under test, and workers that generate load.

    python -m motet_labs.processes MODULE FUNCTION ARGUMENT …

is a worker: it calls one function with JSON arguments and prints the result as one line of JSON. A
function that awaits `serve` answers every line that the worker reads with one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from motet.errors import UnavailableError
from motet.fleet.process import BrokerProcess, running
from motet.runtime.loop import run

STOP_LIMIT_S = 5.0
SHOWN = 2000
Work = Callable[..., Any]
"""A function in a module of the labs, to run in a process of its own."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder on the disk to be measured."""
    place = os.environ.get("MOTET_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="motet-bench-", dir=place) as name:
        yield Path(name)


@contextlib.contextmanager
def broker(name: str = "B1", *links: str, data: Path | None = None) -> Iterator[BrokerProcess]:
    """A broker on a free port, volatile without `data`; `links` as in `motet broker --link`."""
    options = ["--listen", "motet://127.0.0.1:0"]
    options += ["--durability", "volatile"] if data is None else []
    for link in links:
        options += ["--link", link]
    with (
        tempfile.TemporaryDirectory(prefix="motet-bench-log-") as logs,
        running(BrokerProcess(name, options, Path(logs), data=data)) as process,
    ):
        yield process


@contextlib.contextmanager
def line(brokers: int, data: Sequence[Path] = ()) -> Iterator[list[BrokerProcess]]:
    """B1 – B2 – … on free ports; each broker dials the previous one. Volatile without `data`
    folders."""
    with contextlib.ExitStack() as stack:
        made: list[BrokerProcess] = []
        for number in range(1, brokers + 1):
            links = [f"B{number + 1}"] if number < brokers else []
            if made:
                links.append(f"{made[-1].name}={made[-1].address}")
            folder = data[number - 1] if data else None
            made.append(stack.enter_context(broker(f"B{number}", *links, data=folder)))
        yield made


# ── workers ──────────────────────────────────────────────────────────────────────────────


class Worker:
    def __init__(self, process: Popen[bytes], name: str) -> None:
        self._process = process
        self._name = name

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Write a line and wait for the answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `hear` reports the reason
            self._process.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
            self._process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Wait for the next line and return its object."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            said = self._process.stderr.read().decode(errors="replace").strip()
            raise UnavailableError(f"{self._name} failed: {said[-SHOWN:]}")
        heard: dict[str, Any] = json.loads(line)
        return heard


def command(work: Work, *arguments: object) -> list[str]:
    """The command line of a worker; paths become text."""
    words = [json.dumps(each, default=str) for each in arguments]
    return [sys.executable, "-m", "motet_labs.processes", work.__module__, work.__name__, *words]


@contextlib.contextmanager
def worker(work: Work, *arguments: object) -> Iterator[Worker]:
    words = command(work, *arguments)
    with Popen(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, process_group=0) as process:
        try:
            yield Worker(process, work.__name__)
        except BaseException:
            process.kill()
            raise
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def hear_from(work: Work, *arguments: object) -> dict[str, Any]:
    """The first line of a worker."""
    with worker(work, *arguments) as working:
        return working.hear()


# ── in the worker ────────────────────────────────────────────────────────────────────────


def tell(told: object) -> None:
    print(json.dumps(told), flush=True)


def percentiles(times_us: Iterable[float]) -> dict[str, float]:
    times = sorted(times_us)
    return {"p50_us": times[len(times) // 2], "p99_us": times[len(times) * 99 // 100]}


async def serve(answering: object) -> None:
    """Answer each line of standard input, until it ends, by the method that it names."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        tell(await getattr(answering, asked.pop("do"))(**asked) or {})


def main(module: str, function: str, *arguments: str) -> None:
    found = getattr(importlib.import_module(module), function)(*map(json.loads, arguments))
    told = run(found) if inspect.iscoroutine(found) else found
    if told is not None:
        tell(told)


if __name__ == "__main__":
    main(*sys.argv[1:])
