"""Advertisements and subscriptions on their way into force, and out of it.

The part of the conversation that waits for answers. In a durable session a wish may stand already,
because an earlier process of the client has left it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping

from motet.client.arrivals import Arrivals
from motet.client.checks import checked
from motet.client.failures import error_of
from motet.client.happenings import Failure
from motet.client.machine import ClientMachine
from motet.client.operation import INVERSE, Kind
from motet.client.progress import Progress
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import Subscription, finish
from motet.errors import (
    ClosedError,
    Disconnected,
    MisuseError,
    MotetError,
    NameTaken,
    NotEffective,
)
from motet.model import Filter
from motet.runtime.codec import encode

ANSWER_GRACE_S = 2.0
"""How much longer than the broker we wait before we take its silence for an answer."""
MAX_FILTER_BYTES = 1024 * 1024
"""Filters are bounded where they are made; this keeps any of them far below a frame's limit."""


class Wishes(ABC):
    address: str
    machine: ClientMachine
    progress: Progress
    arrivals: Arrivals
    error: MotetError | None
    entries: dict[int, Standing]
    _loop: asyncio.AbstractEventLoop
    _answers: dict[int, asyncio.Future[Failure | None]]
    _request_slots: asyncio.Semaphore

    @abstractmethod
    def check_open(self) -> None: ...

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def _carry_out(self) -> None: ...

    async def put_in_force(
        self,
        entry: Standing,
        *,
        wait: bool,
        timeout_s: float,
        since: Mapping[str, int] | None = None,
    ) -> None:
        """Advertise or subscribe, and wait until it is answered; raises if it failed. In a durable
        session it may stand already."""
        async with self._request_slots:
            self.check_open()
            _check_travels(entry.filter)
            self._flush()
            waits = True
            if not self._is_left(entry):
                name = entry.name if self.machine.durable else ""
                entry.handle = self.machine.request(
                    entry.kind,
                    entry.filter,
                    wait=wait,
                    timeout_s=timeout_s,
                    name=name,
                    since=since,
                )
                self.arrivals.hear(entry)
            else:
                waits = self.machine.await_answer(entry.handle)
            self.entries[entry.handle] = entry
            try:
                if waits:
                    await self._answer(entry.handle, entry.kind, timeout_s)
            except BaseException:
                self.entries.pop(entry.handle, None)
                raise

    def _is_left(self, entry: Standing) -> bool:
        """Whether it stands because an earlier process has left it; then it is taken up."""
        left = self.find(entry.kind, entry.name) if self.machine.durable else None
        if left is None:
            return False
        what = f"{entry.kind} {entry.name!r}"
        if left.taken_up:
            text = f"{what}: it is in force in this process already; take another name for it"
            raise NameTaken(text)
        if left.filter != entry.filter:
            raise NameTaken(
                f"{what}: it stands with the filter {left.filter}; take that one back first, "
                "by its name, or take another name"
            )
        entry.inherit(left)
        if isinstance(entry, Subscription):
            self.progress.busy(entry)
        return True

    def find(self, kind: str, name: str) -> Standing | None:
        """What is in force under a name."""
        for entry in self.entries.values():
            if entry.kind == kind and entry.name == name and entry.in_force:
                return entry
        return None

    def _take_over(self) -> None:
        """What another process has left stands here, too, and keeps its events."""
        for operation in self.machine.standing():
            if operation.handle not in self.entries and operation.filter is not None:
                entry: Standing
                what = (operation.filter, self.withdraw, operation.name)
                if operation.kind == "subscribe":
                    entry = Subscription(*what, on_loss="raise", progress=self.progress)
                else:
                    entry = Advertisement(*what)
                entry.taken_up = False
                entry.handle = operation.handle
                self.entries[entry.handle] = entry

    async def withdraw(self, entry: Standing, /, *, wait: str, timeout: float) -> None:
        """Take something back, if it is in force: else it was before, or went with the session."""
        everywhere, timeout_s = checked(wait, timeout)
        if entry.in_force:
            await self.take_back(entry, wait=everywhere, timeout_s=timeout_s)
            await finish((entry,))

    async def take_back(self, entry: Standing, *, wait: bool, timeout_s: float) -> None:
        """The inverse. Who is cancelled while it waits for its turn may try again."""
        async with self._request_slots:
            if not entry.in_force:
                return  # somebody else was quicker, or all is over
            self._flush()
            kind = INVERSE[entry.kind]
            handle = self.machine.request(kind, target=entry.handle, wait=wait, timeout_s=timeout_s)
            entry.end(None)
            try:
                await self._answer(handle, kind, timeout_s)
            finally:
                self.entries.pop(entry.handle, None)

    async def _answer(self, handle: int, kind: Kind, timeout_s: float) -> None:
        """Let the request leave; raise unless it is done in time."""
        answer: asyncio.Future[Failure | None] = self._loop.create_future()
        self._answers[handle] = answer
        self._carry_out()
        try:
            async with asyncio.timeout(timeout_s + ANSWER_GRACE_S):
                failure = await answer
        except TimeoutError:
            self._abandon(handle)
            if self.machine.state != "open":
                raise Disconnected(f"{kind}: no connection to {self.address}") from None
            raise NotEffective(kind, (self.machine.broker or self.address,), timeout_s) from None
        except BaseException:
            self._abandon(handle)
            raise
        finally:
            self._answers.pop(handle, None)
        if failure is not None:
            if self.error is not None and failure.error == ClosedError.__name__:
                raise self.error
            raise error_of(failure, kind, timeout_s)

    def _abandon(self, handle: int) -> None:
        self.machine.abandon(handle)
        self._carry_out()


def _check_travels(wanted: Filter) -> None:
    """Before it has a number: one that is numbered and cannot be sent would block all others."""
    try:
        length = len(encode(wanted))
    except Exception as problem:
        raise MisuseError(f"this filter cannot be sent: {problem}") from problem
    if length > MAX_FILTER_BYTES:
        raise MisuseError(f"a filter of {length} bytes is above the limit of {MAX_FILTER_BYTES}")
