"""Orders of operators to one broker: move a client, drain, list sessions."""

from __future__ import annotations

from motet.client.channel import PATIENCE_S, RequestChannel
from motet.client.relocation import ANSWER_GRACE_S, advised
from motet.client.session.state import Failure, error_of
from motet.errors import Disconnected, NoAnswer
from motet.protocol.mobility.messages import (
    DrainOrder,
    DrainOrdered,
    MoveOrder,
    MoveOrdered,
    SessionAccount,
    SessionsListed,
    SessionsRequest,
)

__all__ = ["MoveOrders", "SessionAccount", "move_order", "order_drain", "sessions_of"]


class MoveOrders:
    """One connection to a broker whose clients are moved, one after the other."""

    def __init__(self, address: str, most_s: float) -> None:
        """No move takes longer than `most_s`."""
        self._channel = RequestChannel(address, most_s + ANSWER_GRACE_S, "never")

    async def move(self, client: str, to: str, timeout_s: float) -> None:
        """Returns when the move is decided; raises why the client stays. After `Disconnected` it is
        unknown whether it moves."""
        try:
            ordered = await self._channel.ask(MoveOrder(client, to, timeout_s), MoveOrdered)
        except NoAnswer as problem:
            raise NoAnswer(f"{problem}, so it is unknown whether {client!r} moves") from None
        except Disconnected as problem:
            raise Disconnected(f"{problem}; it is unknown whether {client!r} moves") from None
        if ordered.error:
            failure = Failure(ordered.error, ordered.text, ordered.missing)
            raise advised(error_of(failure, f"move {client} to {to}", timeout_s))

    async def close(self) -> None:
        await self._channel.close()


async def move_order(address: str, client: str, to: str, timeout_s: float) -> None:
    """One move; see `MoveOrders.move`."""
    orders = MoveOrders(address, timeout_s)
    try:
        await orders.move(client, to, timeout_s)
    finally:
        await orders.close()


async def order_drain(address: str, draining: bool) -> bool:
    """Whether it was otherwise before. Raises `NotOffered` if clients of this broker cannot
    move."""
    async with RequestChannel(address, PATIENCE_S, "never") as channel:
        ordered = await channel.ask(DrainOrder(draining), DrainOrdered)
    if ordered.error:
        raise error_of(Failure(ordered.error, ordered.text))
    return ordered.changed


async def sessions_of(address: str) -> list[SessionAccount]:
    """All sessions of a broker, sorted by client."""
    found: list[SessionAccount] = []
    async with RequestChannel(address, PATIENCE_S, "never") as channel:
        while True:
            after = found[-1].client if found else ""
            listed = await channel.ask(SessionsRequest(after), SessionsListed)
            found += listed.sessions
            if not listed.more or not listed.sessions:
                return found
