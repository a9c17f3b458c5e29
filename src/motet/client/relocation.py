"""Moves of a client to other brokers, one after the other, and how long their callers wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from motet.errors import Disconnected, MotetError, NoAnswer, NotEffective

if TYPE_CHECKING:
    from motet.client.driver import SessionDriver

ANSWER_GRACE_S = 2.0
"""How much longer than the broker's timeout the client waits for the decision."""
STAYS = "the client stays where it is; `motet status` shows which brokers and links are down"


def advised(problem: MotetError) -> MotetError:
    """Says of a move that was not effective where the client is."""
    if not isinstance(problem, NotEffective):
        return problem
    return NotEffective(problem.operation, problem.missing, problem.timeout_s, STAYS)


class MoveCalls:
    """The timeout of a move applies until the broker has decided; then the session is on its way,
    and the client waits for it, or for as long as it has patience."""

    def __init__(self, driver: SessionDriver) -> None:
        self._driver = driver
        self._turn = asyncio.Lock()
        self._limit: asyncio.Timeout | None = None
        self._limit_s = 0.0
        self._patience_s: float | None = None
        self._out_of_patience: asyncio.TimerHandle | None = None

    async def move(self, to: str, timeout_s: float, patience_s: float | None) -> None:
        driver = self._driver
        async with self._turn:
            driver.check_open()
            driver.flush()
            driver.progress.hurry()  # what is not acknowledged is read again at the target
            handle = driver.machine.move(to, timeout_s)
            self._limit_s, self._patience_s = timeout_s + ANSWER_GRACE_S, patience_s
            self._limit = asyncio.timeout(self._limit_s)
            if driver.machine.moving.told is not None:
                self._grow_impatient()
            try:
                await driver.answers.wait(handle, f"move to {to}", timeout_s, self._limit)
            except (Disconnected, NotEffective) as problem:
                if not self._limit.expired():
                    raise advised(problem) from None
                where = driver.machine.broker or driver.dialer.address
                raise NoAnswer(
                    f"move to {to}: {where} did not answer within {timeout_s:g} s, so it is "
                    "unknown whether the client moves; `client.broker` tells where it is"
                ) from None
            finally:
                self._limit = self._patience_s = None
                self._be_patient()

    def redirected(self) -> None:
        """A broker has decided a move, perhaps another one than that which a caller waits for."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None)
        self._grow_impatient()

    def welcomed(self) -> None:
        self._be_patient()
        moving, limit = self._driver.machine.moving, self._limit
        if limit is not None and limit.when() is None and moving.asked is not None:
            limit.reschedule(asyncio.get_running_loop().time() + self._limit_s)

    def _grow_impatient(self) -> None:
        if self._patience_s is not None and self._out_of_patience is None:
            loop = asyncio.get_running_loop()
            self._out_of_patience = loop.call_later(self._patience_s, self._driver.lose_patience)

    def _be_patient(self) -> None:
        if self._out_of_patience is not None:
            self._out_of_patience.cancel()
            self._out_of_patience = None
