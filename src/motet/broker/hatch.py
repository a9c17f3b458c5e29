"""Requests that are answered beside the core. Each stands for itself and gets one answer; a
connection may have one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from motet.errors import InvariantError, MotetError, PeerError, ProtocolError, VersionError
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.reading.messages import Refused
from motet.runtime.contact import Contact

log = logging.getLogger("motet.broker")

LONGEST_TEXT: Final = 2000


class Request(Protocol):
    @property
    def version(self) -> int: ...

    @property
    def number(self) -> int: ...


Asked = TypeVar("Asked", bound=Request)
Answered = TypeVar("Answered")


class Hatch(Generic[Asked, Answered]):
    """`find` finds the answer, `answer` sends it; what `is_ours` is the broker's own trouble, which
    its operator should know of."""

    def __init__(
        self,
        find: Callable[[Asked], Awaitable[Answered]],
        answer: Callable[[Contact, Answered | Refused], None],
        is_ours: Callable[[MotetError], bool],
    ) -> None:
        self._find = find
        self._answer = answer
        self._is_ours = is_ours
        self._asked: dict[int, asyncio.Task[None]] = {}
        """By the number of the contact, what is being answered."""

    def take(self, contact: Contact, request: Asked) -> PeerError | None:
        """Begin to answer a request; or say why its connection cannot go on."""
        if request.version != PROTOCOL_VERSION:
            return VersionError(
                f"the peer speaks version {request.version} of the protocol, this broker "
                f"{PROTOCOL_VERSION}"
            )
        if contact.number in self._asked:
            return ProtocolError("asked again before the answer came: wait for it")
        task = asyncio.get_running_loop().create_task(self._serve(contact, request))
        self._asked[contact.number] = task
        return None

    async def close(self) -> None:
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, contact: Contact, request: Asked) -> None:
        answer: Answered | Refused
        try:
            answer = await self._find(request)
        except MotetError as problem:
            if self._is_ours(problem):
                log.error("%s cannot be served: %s", contact, problem)
            answer = Refused(request.number, type(problem).__name__, str(problem)[:LONGEST_TEXT])
        except Exception as failure:  # whoever asks must not be able to end a broker
            log.exception("%s cannot be served, by our own fault", contact)
            text = f"the broker failed to answer: {failure!r}"[:LONGEST_TEXT]
            answer = Refused(request.number, InvariantError.__name__, text)
        finally:
            self._asked.pop(contact.number, None)
        self._answer(contact, answer)
