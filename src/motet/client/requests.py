"""The requests of a client: made, numbered, answered once; and what stands because of them.

The part of the client's machine that knows nothing of events. An operation keeps its handle for
the life of the client; its number is the one of the session it is sent in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from motet import errors
from motet.client.happenings import Effects, Failure, Lapsed, Resolved
from motet.client.moves import State
from motet.client.operation import INVERSE, Kind, Operation, Routes
from motet.model import Filter
from motet.protocol.session.messages import Done, Failed, Stands, Tag, TxRequest

MAX_REQUESTS = 1024
RENEWED_TIMEOUT_S = 10.0


class Requests(ABC):
    client: str
    state: State
    _effects: Effects

    def __init__(self) -> None:
        self._handles = 0
        self._sequences = 0
        self._shown = 0  # requests up to this sequence may be known to the broker
        self._answered_upto = 0  # the broker has this request, and so all before it
        self._unanswered: dict[int, Operation] = {}  # by sequence, in the order they were made
        self._standing: dict[int, Operation] = {}  # by handle: in force and ours to renew
        self._subscribed: dict[int, Operation] = {}  # by sequence: where deliveries go
        self._routes = Routes(self._subscribed)

    @property
    @abstractmethod
    def made(self) -> int:
        """Ordinal of the last publication made."""

    @abstractmethod
    def _reach(self) -> Mapping[str, int]:
        """How far back a subscription reaches that says nothing of it."""

    @abstractmethod
    def _check_reach(self, since: Mapping[str, int]) -> None:
        """`TooLate` if events that are asked for lie behind what has come."""

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def request(
        self,
        kind: Kind,
        filter: Filter | None = None,
        *,
        target: int | None = None,
        wait: bool = True,
        timeout_s: float = 10.0,
        name: str = "",
        since: Mapping[str, int] | None = None,
    ) -> int:
        """Advertise or subscribe a filter, or take back the operation with handle `target`. What
        is to be in force has a `name`, by which a later process finds it in a durable session.
        `since` is a subscription's reach into the past; None: none, or what the client says."""
        self._check_asking(kind)
        undone = None
        if kind not in INVERSE:
            undone = self._take_back(kind, target)
        elif filter is None:
            raise errors.MisuseError(f"{kind} needs a filter")
        if since is None:
            since = self._reach() if kind == "subscribe" else {}
        self._check_reach(since)
        made = self._issue(kind, filter, undone, wait, timeout_s, name=name, since=since)
        return made.handle

    def _check_asking(self, kind: Kind) -> None:
        if self.state == "ended":
            raise errors.ClosedError(f"cannot {kind}: the session of {self.client!r} has ended")
        if len(self._unanswered) >= MAX_REQUESTS:
            raise errors.MisuseError(f"more than {MAX_REQUESTS} requests await their answer")

    def abandon(self, handle: int) -> None:
        """Nobody waits for this request any more; what it may have put in force is undone."""
        # In force means that the answer came, but he who asked was gone before he could read it.
        operation = self._standing.get(handle) or self._awaited(handle)
        if operation is None:
            return
        if operation.target is not None and operation.tag is None:
            return  # whoever holds what it takes back must hear whether that is over
        operation.awaited = False
        if operation.kind not in INVERSE or self._being_undone(operation):
            return
        self._standing.pop(handle, None)
        if operation.sequence > self._shown:
            self._unmake(operation)
        else:
            undo = INVERSE[operation.kind]
            wait_s, tag = operation.timeout_s, self._undecided(operation)
            self._issue(undo, None, operation, False, wait_s, awaited=False, tag=tag)

    def _undecided(self, operation: Operation) -> Tag | None:
        """The transaction, not yet decided, in which something has to be taken back."""
        del operation
        return None

    def _awaited(self, handle: int) -> Operation | None:
        waiting = (o for o in self._unanswered.values() if o.handle == handle and o.awaited)
        return next(waiting, None)

    def _unmake(self, operation: Operation) -> None:
        """It was never sent, so nobody knows its number: those behind it move up."""
        behind = [o for o in self._unanswered.values() if o.sequence >= operation.sequence]
        for other in behind:
            del self._unanswered[other.sequence]
            self._subscribed.pop(other.sequence, None)
        self._routes.clear()
        self._sequences = operation.sequence - 1
        for other in behind[1:]:
            self._number(other)

    def _issue(
        self,
        kind: Kind,
        wanted: Filter | None,
        target: Operation | None,
        wait: bool,
        timeout_s: float,
        awaited: bool = True,
        name: str = "",
        since: Mapping[str, int] = MappingProxyType({}),
        tag: Tag | None = None,
        asks: TxRequest | None = None,
    ) -> Operation:
        self._handles += 1
        operation = Operation(
            self._handles, kind, wanted, target, wait, timeout_s, self.made, awaited
        )
        operation.name, operation.since = name, dict(since)
        operation.tag, operation.asks = tag, asks
        self._number(operation)
        if self.state == "open":
            self._shown = self._sequences
            self._effects.send.append(operation.frame())
        return operation

    def _number(self, operation: Operation) -> None:
        self._sequences += 1
        operation.sequence = self._sequences
        self._unanswered[operation.sequence] = operation
        if operation.kind == "subscribe":
            self._subscribed[operation.sequence] = operation

    def _take_back(self, kind: Kind, target: int | None) -> Operation:
        """From now on the operation is no longer ours to renew."""
        operation = self._undoable(kind, target)
        self._standing.pop(operation.handle, None)
        return operation

    def _undoable(self, kind: Kind, target: int | None) -> Operation:
        candidates = (*self._standing.values(), *self._unanswered.values())
        for operation in candidates:
            undoable = operation.handle == target and INVERSE.get(operation.kind) == kind
            if undoable and not self._being_undone(operation):
                return operation
        raise self._nothing_there(kind)

    def _nothing_there(self, kind: Kind) -> errors.NoSuchOperation:
        return errors.NoSuchOperation(f"{kind}: nothing of that kind is in force under this handle")

    def _being_undone(self, operation: Operation) -> bool:
        """For sure: what is taken back in a transaction stays if that is aborted."""
        others = self._unanswered.values()
        return operation.gone or any(
            other.target is operation and other.tag is None for other in others
        )

    def _resolve(self, operation: Operation, failure: Failure | None, value: str = "") -> None:
        if operation.awaited:
            operation.awaited = False
            self._effects.happened.append(Resolved(operation.handle, failure, value))

    def _answered(self, sequence: int) -> Operation | None:
        """The operation that an answer is for; None if it was answered before."""
        if not 0 < sequence <= self._sequences:
            raise errors.ProtocolError(f"an answer to request {sequence}, which was never made")
        self._answered_upto = max(self._answered_upto, sequence)
        return self._unanswered.pop(sequence, None)

    def _on_done(self, frame: Done) -> None:
        operation = self._answered(frame.sequence)
        if operation is None:
            return
        if operation.kind == "ask" or (operation.tag is not None and operation.target is not None):
            pass  # what is taken back in a transaction goes when that commits
        elif operation.target is not None:
            self._forget(operation.target)
        elif not self._being_undone(operation):
            self._standing[operation.handle] = operation
        self._resolve(operation, None, frame.value)

    def _on_failed(self, frame: Failed) -> None:
        operation = self._answered(frame.sequence)
        if operation is None:
            return
        failure = Failure(frame.error, frame.text, frame.missing)
        if frame.error == errors.InTransaction.__name__ and operation.target is not None:
            if not operation.target.gone:
                self._standing[operation.target.handle] = operation.target  # it stays
        elif operation.kind == "ask" or (
            operation.tag is not None and operation.target is not None
        ):
            pass
        elif operation.target is not None:
            self._forget(operation.target)  # our broker has let go of it, whatever others did
        else:
            self._forget(operation)  # what failed, the broker has taken back itself
            if self._standing.pop(operation.handle, None) is not None:
                self._effects.happened.append(Lapsed(operation.handle, failure))
        self._resolve(operation, failure)

    def _forget(self, operation: Operation) -> None:
        if self._subscribed.pop(operation.sequence, None) is not None:
            self._routes.clear()

    # ── what another process has left ────────────────────────────────────────────────────

    def standing(self) -> list[Operation]:
        """Advertisements and subscriptions that are in force, or asked for, and not being taken
        back."""
        known = (*self._standing.values(), *self._unanswered.values())
        return [each for each in known if each.kind in INVERSE and not self._being_undone(each)]

    def await_answer(self, handle: int) -> bool:
        """Whether an operation still waits for its answer; if so, it will be told."""
        waiting = next((o for o in self._unanswered.values() if o.handle == handle), None)
        if waiting is not None:
            waiting.awaited = True
        return waiting is not None

    def _take_over(self, requests: int, standing: tuple[Stands, ...]) -> None:
        """A durable session has requests of another process. What that one has left in force is
        ours now; what we have asked for under the same name is there already."""
        asked = list(self._unanswered.values())
        self._unanswered.clear()
        self._subscribed.clear()
        self._routes.clear()
        self._sequences = self._shown = self._answered_upto = requests
        for each in standing:
            same = (o for o in asked if (o.kind, o.name) == (each.kind, each.name))
            operation = next(same, None)
            if operation is not None and operation.filter != each.filter:
                text = f"{each.name!r} stands already, with the filter {each.filter}"
                asked.remove(operation)
                self._resolve(operation, Failure("NameTaken", text))
                operation = None
            if operation is None:
                operation = self._found(each)
            else:
                asked.remove(operation)
            self._install(operation, each)
        for operation in asked:
            self._number(operation)

    def _found(self, stands: Stands) -> Operation:
        """Something is in force that we have not asked for."""
        self._handles += 1
        what = (stands.kind, stands.filter, None, True, RENEWED_TIMEOUT_S, 0, False)
        operation = Operation(self._handles, *what)
        operation.name = stands.name
        return operation

    def _install(self, operation: Operation, stands: Stands) -> None:
        operation.sequence = stands.sequence
        if operation.kind == "subscribe":
            self._subscribed[operation.sequence] = operation
        if stands.answered:
            self._standing[operation.handle] = operation
            self._resolve(operation, None)
        else:
            self._unanswered[operation.sequence] = operation
