"""A connection whose transport has ended, and whose handler was not told yet."""

from __future__ import annotations

from collections.abc import Sequence

from motet.runtime.tcp import TcpConnection, TcpTransport
from motet.runtime.transport import Connection
from tests.waiting import eventually


class Ended:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.reasons: list[str] = []

    def frames(self, bodies: Sequence[bytes]) -> None:
        """Nobody sends."""

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)

    def writable(self) -> None:
        """Nothing waits."""


async def test_calls_after_the_end_of_a_transport_do_nothing() -> None:
    accepted: list[Ended] = []

    def accept(connection: Connection) -> Ended:
        accepted.append(Ended(connection))
        return accepted[-1]

    transport = TcpTransport()
    listening = await transport.listen("motet://127.0.0.1:0", accept)
    await transport.connect(listening.address, accept)
    await eventually(lambda: len(accepted) == 2)
    for each in accepted:
        connection = each.connection
        assert isinstance(connection, TcpConnection)
        connection.transport.abort()
        connection.send([b"too late"])
        connection.pause_reading()
        connection.resume_reading()
        assert not each.reasons, "it is told in the next iteration"
        connection.close()
    await eventually(lambda: all(each.reasons for each in accepted))
    await listening.close()
