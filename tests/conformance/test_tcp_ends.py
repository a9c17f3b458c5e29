"""Ends of connections of which the event loop does not tell us."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from motet.runtime.tcp import TcpTransport
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


async def test_a_dial_that_is_cancelled_as_it_succeeds_ends_its_connection() -> None:
    """uvloop closes the transport then without a word, and raises at every later call."""
    accepted: list[Ended] = []
    dialled: list[Ended] = []

    def accept(connection: Connection) -> Ended:
        accepted.append(Ended(connection))
        return accepted[-1]

    def accept_and_cancel(connection: Connection) -> Ended:
        dialling.cancel()
        dialled.append(Ended(connection))
        return dialled[-1]

    transport = TcpTransport()
    listening = await transport.listen("motet://127.0.0.1:0", accept)
    dialling = asyncio.create_task(transport.connect(listening.address, accept_and_cancel))
    with pytest.raises(asyncio.CancelledError):
        await dialling
    (one,) = dialled
    one.connection.send([b"too late"])
    one.connection.close()
    await eventually(lambda: one.reasons)
    await eventually(lambda: accepted and accepted[0].reasons)
    assert len(one.reasons) == 1
    await listening.close()
