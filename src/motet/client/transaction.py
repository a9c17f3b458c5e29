"""A transaction as applications see it, whether they began it or were invited to it.

async with client.transaction() as tx:
    await tx.invite({"assign": "agent-1", "instance": "x1"})
    await tx.unsubscribe(updates)

Everything in it takes effect when the block ends, or nothing does: an error in the block aborts it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from msgspec import Raw

from motet.client.checks import checked_name, checked_reason, is_text, reason_of, shown
from motet.client.explaining import (
    REMEMBERED,
    Explanation,
    Made,
    Shape,
    Sketch,
    explain_transaction,
    shape_of,
)
from motet.client.happenings import Concluded
from motet.client.outgoing import Outgoing, Publishable
from motet.client.standing import Advertisement, Standing
from motet.client.subscription import DEFAULT_BUFFER, Callback, OnLoss, Subscription
from motet.client.transacting import GONE
from motet.errors import (
    Aborted,
    ClosedError,
    Disconnected,
    MisuseError,
    MotetError,
    NoSuchOperation,
    NotInvited,
    PlanError,
    TransactionOver,
)
from motet.model import Event, Filter, as_filter, decode_attributes, decode_body
from motet.protocol.session.messages import (
    AnswerRequest,
    EndRequest,
    ExecuteRequest,
    Invited,
    InviteRequest,
    StageRequest,
    Tag,
)
from motet.protocol.transactions.messages import SAME_KEY
from motet.runtime.codec import encode

if TYPE_CHECKING:
    from motet.client.conversation import Conversation

log = logging.getLogger("motet.client")

MAX_KEY_CHARS = 1024
MAX_PLAN_BYTES = 4 << 20
LEAVE_S = 1.0
"""How long a block that has raised waits to hear that its transaction is aborted."""

Isolation = Literal["serializable", "none"]
Handler = Callable[["Invitation", "Transaction"], Awaitable[object]]
Began = Callable[[Subscription], object]


class Invitation:
    """Why a client is to take part: the event that somebody has sent."""

    def __init__(self, event: Event, tx_id: str) -> None:
        self.event = event
        self.tx_id = tx_id

    def __repr__(self) -> str:
        return f"<Invitation to {self.tx_id}: {self.event!r}>"


class Transaction:
    """Operations of this client in one transaction. All of them, and those of the others in it,
    take effect together, or none does."""

    def __init__(self, talk: Conversation, tx: str, timeout_s: float, order: str = "") -> None:
        self._talk = talk
        self.id = tx
        """How `client.outcome` knows it, in this process or another. If another one with the same
        key was committed before, it is the id of that one once this is committed."""
        self._before = False
        """Another one with the same key was committed before."""
        self.timeout_s = timeout_s
        self._order = order
        self._made = 0
        self._body = Outgoing().body
        self._coordinates = not order
        self._closed = False
        self._ended_here = False
        """We have aborted it ourselves."""
        self.isolated = False
        self.made: list[Made] = []
        """What this client has done in it, and how long that took."""
        self.outcome: asyncio.Future[Concluded] = asyncio.get_running_loop().create_future()

    @property
    def committed(self) -> bool | None:
        """None while it is open, or if nobody can say."""
        if self._before:
            return True
        return self.outcome.result().committed if self.outcome.done() else None

    # ── operations ───────────────────────────────────────────────────────────────────────

    async def advertise(self, filter: str | Filter, *, name: str | None = None) -> Advertisement:
        """Announce what will be published, in this transaction and after it."""
        entry = Advertisement(as_filter(filter), self._talk.withdraw, checked_name(name))
        with self._noted("advertise", str(entry.filter)):
            await self._talk.put_in(self._tag(), entry, self.timeout_s)
        return entry

    async def subscribe(
        self,
        filter: str | Filter,
        *,
        name: str | None = None,
        callback: Callback | None = None,
        buffer: int = DEFAULT_BUFFER,
        on_loss: OnLoss = "count",
    ) -> Subscription:
        """Receive what matches from the commit on. Of a stream that is handed over in the same
        transaction, every event goes to exactly one side."""
        entry = Subscription(
            as_filter(filter),
            self._talk.withdraw,
            checked_name(name),
            buffer=buffer,
            callback=callback,
            on_loss=on_loss,
            progress=self._talk.progress,
        )
        try:
            with self._noted("subscribe", str(entry.filter)):
                await self._talk.put_in(self._tag(), entry, self.timeout_s)
        except BaseException:
            entry.end(None)
            raise
        return entry

    async def unadvertise(self, advertisement: Advertisement | str) -> None:
        await self._end("advertise", advertisement)

    async def unsubscribe(self, subscription: Subscription | str) -> None:
        """It ends with the commit, and gives all that was published before."""
        await self._end("subscribe", subscription)

    async def _end(self, kind: str, what: Standing | str) -> None:
        entry = self._talk.find(kind, what) if isinstance(what, str) else what
        if not isinstance(entry, Standing) or entry.kind != kind:
            raise NoSuchOperation(f"un{kind}: nothing called {what!r} is in force at this client")
        if self._talk.entries.get(entry.handle) is not entry:
            raise NoSuchOperation(f"{entry!r} is not in force at this client")
        with self._noted(f"un{kind}", entry.name):
            await self._talk.take_out(self._tag(), entry, self.timeout_s)

    async def publish(self, event: Publishable, payload: bytes = b"") -> None:
        """Publish with the commit: before, nobody sees it; if it aborts, nobody does."""
        body = self._body(event, payload)
        with self._noted("publish"):
            await self._talk.ask(StageRequest(0, self._tag(), body, self.timeout_s))

    async def invite(self, event: Publishable, payload: bytes = b"") -> int:
        """Let all who subscribe to this event take part, now. Returns when all of them have done
        what they do in it, with how many there were; `InvitationRefused` if one will not."""
        body = self._body(event, payload)
        with self._noted("invite", repr(decode_attributes(body))) as made:
            value = await self._talk.ask(InviteRequest(0, self._tag(), body, self.timeout_s))
            made.reached = int(value or 0)
        return made.reached

    @contextmanager
    def _noted(self, kind: str, what: str = "") -> Iterator[Made]:
        """What was done, for `explain`; what failed was not. If the transaction was aborted by
        others meanwhile, that is why."""
        made, began_s = Made(kind, what), time.perf_counter()
        try:
            yield made
        except TransactionOver:
            self._check_lasts()
            raise
        made.seconds = time.perf_counter() - began_s
        self.made.append(made)

    def explain(self, sketch: Sketch | None = None) -> Explanation:
        """What it has cost so far and will cost, and whether a plan would have cost less. How many
        messages and hops that is depends on the overlay: `await client.explain(tx)` asks it."""
        return explain_transaction(self.made, self.isolated, sketch, self._talk.participation.past)

    def _check_lasts(self) -> None:
        """`Aborted`, with the reason, if others have aborted it, or its session is lost."""
        if self.outcome.done() and not self.committed and not self._ended_here:
            raise Aborted(self.outcome.result().reason or "it was aborted")

    def _tag(self) -> Tag:
        self._check_lasts()
        if self._closed or self.outcome.done():
            raise TransactionOver(
                f"transaction {self.id} is over: operations belong into one that is open"
            )
        self._made += 1
        place = f"{self._made:08d}"
        return Tag(self.id, f"{self._order}/{place}" if self._order else place)

    # ── the end ──────────────────────────────────────────────────────────────────────────

    async def commit(self) -> None:
        """All of it takes effect; `Aborted` if it cannot. Returns when it is effective wherever it
        concerns anybody; `StillSpreading` if one of them is away for longer than the timeout. If
        one with the same key was committed before, that was enough: this has its id then, and
        nothing that was done in here takes effect again."""
        told = self.id
        if not self._closed and self.outcome.done():
            reason = self.outcome.result().reason
            told = reason.removeprefix(SAME_KEY) if reason.startswith(SAME_KEY) else told
        if told == self.id:
            told = await self._finish(commit=True)
        if told and told != self.id:
            self._closed = self._before = True
            self.id = told

    async def abort(self, reason: str = "") -> None:
        """Nothing of it takes effect. Twice is harmless."""
        told = checked_reason(reason)
        if self._closed:
            return
        with suppress(Aborted):
            await self._finish(commit=False, reason=told)

    async def _finish(self, *, commit: bool, reason: str = "") -> str:
        if not self._coordinates:
            raise MisuseError(
                "only who began a transaction ends it; who was invited returns from its handler, "
                "or raises to refuse"
            )
        if not self._closed:
            self._closed = self.outcome.done()
            self._check_lasts()
        if self._closed:
            raise TransactionOver(f"transaction {self.id} is over")
        self._closed = True
        self._ended_here = not commit
        self._talk.participation.remember(self.made)
        request = EndRequest(0, self.id, commit, reason, self.timeout_s)
        with self._noted("commit" if commit else "abort"):
            return await self._talk.ask(request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        if self._closed:
            return
        if error is None:
            await self.commit()
            return
        # What the block has raised matters more than how the abort goes.
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.abort(reason_of(error))
        except (MotetError, TimeoutError) as problem:
            log.info("transaction %s, aborted by its block: %s", self.id, problem)

    def __repr__(self) -> str:
        state = {True: "committed", False: "aborted", None: "open"}[self.committed]
        return f"<Transaction {self.id}, {state}>"


class Participation:
    """A client's part in the transactions of others, and the outcomes of all it has part in."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self.handler: Handler | None = None
        self.began: Began | None = None
        self._open: dict[str, list[Transaction]] = {}
        """All handles on it: whoever is invited twice has two."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.past: list[Shape] = []
        """What the last transactions of this client looked like."""

    def remember(self, made: list[Made]) -> None:
        self.past = [*self.past, shape_of(made)][-REMEMBERED:]

    def opened(self, tx: Transaction) -> None:
        self._open.setdefault(tx.id, []).append(tx)

    def called(self, invited: Invited) -> None:
        task = asyncio.get_running_loop().create_task(self._take_part(invited))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_part(self, invited: Invited) -> None:
        refusal = ""
        try:
            await self._handle(invited)
        except Exception as problem:
            refusal = f"{self._talk.machine.client}: {reason_of(problem)}"
        answer = AnswerRequest(0, invited.tx, invited.op, refusal, invited.timeout_s)
        # Decided meanwhile, or nobody is there to hear it: then it is over for us.
        with suppress(TransactionOver, NotInvited, Aborted, Disconnected, ClosedError):
            await self._talk.ask(answer)

    async def _handle(self, invited: Invited) -> None:
        if self.handler is None:
            raise MisuseError(
                "takes part in no transactions: await client.participate(handler) lets it"
            )
        tx = Transaction(self._talk, invited.tx, invited.timeout_s, invited.order)
        self.opened(tx)
        attributes, payload = decode_body(Raw(invited.body))
        event = Event.delivered(attributes, payload, invited.op.client, invited.op.sequence)
        await self.handler(Invitation(event, invited.tx), tx)

    def concluded(self, news: Concluded) -> None:
        for tx in self._open.pop(news.tx, []):
            if not tx.outcome.done():
                tx.outcome.set_result(news)
        for each in self._talk.touched.pop(news.tx, []):
            if each.begins_in == news.tx:
                each.begins_in = ""
            if each.ends_in == news.tx and not news.committed:
                each.ends_in = ""
        for handle in news.ended:
            ended = self._talk.entries.get(handle)
            if ended is not None:
                ended.ends_in = news.tx
        for operation in news.began:
            entry = self._talk.begin_planned(operation)
            if self.began is not None and isinstance(entry, Subscription):
                try:
                    self.began(entry)
                except Exception:  # the application's, which must not end our session
                    log.exception("the application failed when %r began", entry)

    def lose_session(self) -> None:
        """What was open in it is void; nobody may be able to say more."""
        for tx in list(self._open):
            self.concluded(Concluded(tx, 0, None, GONE.text))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def checked_isolation(isolation: str) -> bool:
    if isolation not in ("serializable", "none"):
        raise MisuseError(f"isolation is 'serializable' or 'none', not {shown(isolation)}")
    return isolation == "serializable"


def checked_key(key: str) -> str:
    if not is_text(key) or len(key) > MAX_KEY_CHARS:
        raise MisuseError(f"a key is text of at most {MAX_KEY_CHARS} characters, not {shown(key)}")
    return key


def check_plan(steps: int, request: ExecuteRequest) -> None:
    """Before it has a number: one that is numbered and cannot be sent would block all others."""
    try:
        size_bytes = len(encode(request))
    except Exception as problem:
        raise PlanError(f"this plan cannot be sent: {problem}") from problem
    if size_bytes > MAX_PLAN_BYTES:
        raise PlanError(
            f"a plan of {steps} steps and {size_bytes:,} bytes is above the limit of "
            f"{MAX_PLAN_BYTES:,}: make several of it"
        )
