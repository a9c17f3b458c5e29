"""Real event services for tests. They are no optional part, so a missing program is a failure."""

from __future__ import annotations

import sys

from motet.fleet.servers import (
    JetStreamServer,
    Mosquitto,
    NatsServer,
    RabbitServer,
    RedisServer,
    Server,
    free_port,
)

__all__ = [
    "Broker",
    "JetStreamServer",
    "Mosquitto",
    "NatsServer",
    "RabbitServer",
    "RedisServer",
    "Server",
    "free_port",
]


class Broker(Server):
    """A broker of Motet, with a log."""

    @property
    def url(self) -> str:
        return f"motet://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        options = ["--name", "B1", "--listen", self.url, "--data", str(self.folder / "broker")]
        return [sys.executable, "-m", "motet", "broker", *options]
