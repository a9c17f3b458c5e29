"""Asking brokers for their status: no session, no hello, one question and one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from motet.errors import Disconnected, MotetError
from motet.protocol.session.messages import Goodnight, Status, StatusRequest
from motet.runtime.addresses import transport_for
from motet.runtime.codec import decode, encode

PATIENCE_S = 2.0


class _Questioner:
    """The handler of the one connection."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def frames(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            try:
                frame = decode(body)
            except MotetError as problem:
                self._fail(problem)
                return
            if isinstance(frame, Status) and not self.answer.done():
                self.answer.set_result(frame.state)
            elif isinstance(frame, Goodnight):
                self._fail(Disconnected(f"the broker closed: {frame.error}: {frame.text}"))

    def closed(self, reason: str) -> None:
        self._fail(Disconnected(f"the broker closed before it answered: {reason}"))

    def writable(self) -> None:
        pass

    def _fail(self, problem: MotetError) -> None:
        if not self.answer.done():
            self.answer.set_exception(problem)


async def ask(address: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """One broker's account of itself; `Disconnected` if it does not give one in time."""
    questioner = _Questioner()
    try:
        async with asyncio.timeout(patience_s):
            connection = await transport_for(address).connect(address, lambda _: questioner)
            try:
                connection.send([encode(StatusRequest())])
                return await questioner.answer
            finally:
                connection.abort("that was all")
                if questioner.answer.done():
                    questioner.answer.exception()  # seen, whether it matters or not
    except TimeoutError:
        raise Disconnected(f"{address} did not answer within {patience_s:g} s") from None


Answer = dict[str, Any] | MotetError


async def ask_all(
    addresses: Mapping[str, str], patience_s: float = PATIENCE_S
) -> dict[str, Answer]:
    """All at once; per broker its answer, or why there is none."""

    async def one(address: str) -> Answer:
        try:
            return await ask(address, patience_s)
        except MotetError as problem:
            return problem

    answers = await asyncio.gather(*(one(address) for address in addresses.values()))
    return dict(zip(addresses, answers, strict=True))
