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
from motet.client.happenings import Resolved
from motet.client.machine import ClientMachine
from motet.client.operation import INVERSE, Operation
from motet.client.progress import Progress
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import Subscription, finish
from motet.client.transacting import how_to_know
from motet.errors import (
    ClosedError,
    Disconnected,
    InTransaction,
    MisuseError,
    MotetError,
    NameTaken,
    NotEffective,
    OutcomeUnknown,
    StillSpreading,
    UnavailableError,
)
from motet.model import Filter
from motet.protocol.session.messages import (
    AnswerRequest,
    BeginRequest,
    CommitRequest,
    ConsentRequest,
    EndRequest,
    ExecuteRequest,
    InviteRequest,
    OutcomeRequest,
    StageRequest,
    Tag,
    TxRequest,
)
from motet.runtime.codec import encode
from motet.runtime.transport import MAX_FRAME_BYTES

VERBS: dict[type, str] = {
    BeginRequest: "begin a transaction",
    ExecuteRequest: "execute a plan",
    StageRequest: "publish in a transaction",
    InviteRequest: "invite to a transaction",
    AnswerRequest: "take part in a transaction",
    ConsentRequest: "take part in plans",
    EndRequest: "end a transaction",
    OutcomeRequest: "ask for an outcome",
    CommitRequest: "commit a batch",
}
"""What a request about a transaction is called when it fails."""
AWAY = "the root, which decides, or a broker on the way to it, could not be reached"
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
    touched: dict[str, list[Standing]]
    """By open transaction: what begins or ends in it."""
    _loop: asyncio.AbstractEventLoop
    _answers: dict[int, asyncio.Future[Resolved]]
    _leaving: dict[int, Standing]
    """By request that takes it back."""
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
                name = entry.name if self.machine.durable else entry.chosen_name
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
        """What is in force under a name. One that goes with a transaction, or perhaps comes with
        one, may have the same name: it is meant only if there is no other."""
        found = [
            entry
            for entry in self.entries.values()
            if entry.kind == kind and entry.name == name and entry.in_force
        ]
        staying = [e for e in found if not e.ends_in]
        here = [e for e in staying if not e.begins_in]
        return next(iter(here or staying or found), None)

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
            entry.leaving = True
            self._leaving[handle] = entry
            await self._answer(handle, kind, timeout_s)

    def _resolved(self, news: Resolved) -> None:
        """A request is answered, whether or not somebody still waits for that. Only now is it known
        whether what was taken back is over: our broker may hold it for a plan."""
        entry = self._leaving.pop(news.handle, None)
        if entry is not None:
            entry.leaving = False
            refused = news.failure is not None and news.failure.error == InTransaction.__name__
            if not refused:
                entry.end(None)
                self.entries.pop(entry.handle, None)
        answer = self._answers.get(news.handle)
        if answer is not None and not answer.done():
            answer.set_result(news)

    # ── in a transaction ─────────────────────────────────────────────────────────────────

    async def ask(self, request: TxRequest) -> str:
        """A request about a transaction, and the value of its answer."""
        async with self._request_slots:
            self.check_open()
            _check_sendable(request)
            self._flush()
            handle = self.machine.ask(request)
            tx = self.machine.commits(handle)
            try:
                return await self._answer(handle, VERBS[type(request)], request.timeout_s)
            except NotEffective as problem:
                if isinstance(request, CommitRequest):
                    raise OutcomeUnknown(
                        f"{problem.operation}: no answer within {problem.timeout_s:g} s; commit it "
                        "again, which changes nothing if it was committed"
                    ) from problem
                # Our broker is there: it waits for another one, in the end for the root.
                text = f"{problem.operation}: {AWAY} within {problem.timeout_s:g} s"
                if not tx:
                    raise UnavailableError(text) from problem
                raise OutcomeUnknown(f"{text}; {how_to_know(tx)}") from problem
            except Disconnected as problem:
                if not tx:
                    raise
                raise OutcomeUnknown(f"{problem}; {how_to_know(tx)}") from problem
            except StillSpreading as problem:
                problem.tx = tx
                raise

    async def put_in(self, tag: Tag, entry: Standing, timeout_s: float) -> None:
        """Advertise or subscribe, as part of a transaction."""
        async with self._request_slots:
            self.check_open()
            _check_travels(entry.filter)
            self._flush()
            entry.handle = self.machine.request_in(
                tag, entry.kind, entry.filter, timeout_s=timeout_s, name=entry.name
            )
            entry.begins_in = tag.tx
            self.touched.setdefault(tag.tx, []).append(entry)
            self.arrivals.hear(entry)
            self.entries[entry.handle] = entry
            try:
                await self._answer(entry.handle, entry.kind, timeout_s)
            except BaseException:
                self.entries.pop(entry.handle, None)
                raise

    async def take_out(self, tag: Tag, entry: Standing, timeout_s: float) -> None:
        """Take something back when the transaction commits."""
        async with self._request_slots:
            self.check_open()
            self._flush()
            kind = INVERSE[entry.kind]
            handle = self.machine.request_in(tag, kind, target=entry.handle, timeout_s=timeout_s)
            entry.ends_in = tag.tx
            self.touched.setdefault(tag.tx, []).append(entry)
            try:
                await self._answer(handle, kind, timeout_s)
            except BaseException:
                entry.ends_in = ""
                raise

    def begin_planned(self, operation: Operation) -> Standing:
        """A plan has put something in force here."""
        assert operation.filter is not None
        what = (operation.filter, self.withdraw, operation.name)
        entry: Standing
        if operation.kind == "subscribe":
            entry = Subscription(*what, progress=self.progress)
        else:
            entry = Advertisement(*what)
        entry.handle = operation.handle
        self.arrivals.hear(entry)
        self.entries[entry.handle] = entry
        return entry

    # ── answers ──────────────────────────────────────────────────────────────────────────

    async def _answer(self, handle: int, kind: str, timeout_s: float) -> str:
        """Let the request leave; raise unless it is done in time."""
        answer: asyncio.Future[Resolved] = self._loop.create_future()
        self._answers[handle] = answer
        self._carry_out()
        try:
            async with asyncio.timeout(timeout_s + ANSWER_GRACE_S):
                resolved = await answer
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
        failure = resolved.failure
        if failure is not None:
            if self.error is not None and failure.error == ClosedError.__name__:
                raise self.error
            raise error_of(failure, kind, timeout_s)
        return resolved.value

    def _abandon(self, handle: int) -> None:
        self.machine.abandon(handle)
        self._carry_out()


def _check_sendable(request: TxRequest) -> None:
    """Before it has a number, as below; whoever made it has better words for what is wrong."""
    try:
        length = len(encode(request))
    except Exception as problem:
        raise MisuseError(f"cannot {VERBS[type(request)]}: {problem}") from problem
    if length > MAX_FRAME_BYTES:
        text = f"a request of {length} bytes is above the limit of {MAX_FRAME_BYTES}"
        raise MisuseError(f"cannot {VERBS[type(request)]}: {text}")


def _check_travels(wanted: Filter) -> None:
    """Before it has a number: one that is numbered and cannot be sent would block all others."""
    try:
        length = len(encode(wanted))
    except Exception as problem:
        raise MisuseError(f"this filter cannot be sent: {problem}") from problem
    if length > MAX_FILTER_BYTES:
        raise MisuseError(f"a filter of {length} bytes is above the limit of {MAX_FILTER_BYTES}")
