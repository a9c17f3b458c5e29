"""The session machine: epochs, idempotent requests, and their answers."""

from __future__ import annotations

from collections.abc import Iterator

from motet.errors import InvariantError, ProtocolError
from motet.model.ids import issuer_of, life_of, make_epoch, number_of
from motet.protocol.session.messages import Done, Failed, Request
from motet.protocol.session.state import Session

LAST_RANK = 2**53
"""The highest number that a client may claim, so that no client can exhaust the numbers."""
REMEMBERED_FAILURES = 4096
"""More than the number of requests that a client may have pending at once."""


class Sessions:
    """Changed only while a fact is applied."""

    def __init__(self, broker: str, incarnation: int) -> None:
        self._broker = broker
        self._life = incarnation
        self.issued = 0
        """The highest number of an epoch issued or heard of."""
        self._sessions: dict[str, Session] = {}
        self._named: dict[str, dict[str, dict[int, None]]] = {}
        """By client, once its names were looked up: by name, the sequences."""
        self.sent_before: dict[str, dict[int, int]] = {}
        """By client and request, for advertisements of its last process: the last publication
        received before it. Publications up to that one lie outside, also if they are resent."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, client: str) -> Session | None:
        return self._sessions.get(client)

    def current(self, client: str, epoch: str) -> Session | None:
        session = self._sessions.get(client)
        return session if session is not None and session.epoch == epoch else None

    def open(
        self,
        client: str,
        instance: str = "",
        resume: str | None = None,
        total_order: bool = False,
    ) -> Session:
        """A new epoch, above all known ones. It contains our incarnation, so that even a broker
        that lost its state never reissues an epoch. A client that reconnects to such a broker keeps
        its number, and with it its rank among older and newer epochs."""
        if client in self._sessions:
            raise InvariantError(f"{client} has a session already")
        rank = number_of(resume) if resume is not None else 0
        self.issued = rank if self.issued < rank <= LAST_RANK else self.issued + 1
        epoch = make_epoch(self._broker, self._life, self.issued)
        session = Session(client, epoch, instance=instance, total_order=total_order)
        self._sessions[client] = session
        return session

    def restore(self, session: Session) -> None:
        """Restore a session from a snapshot."""
        self._sessions[session.client] = session

    def heard(self, epoch: str) -> None:
        """Another broker has issued this epoch: later epochs of ours are newer."""
        self.issued = max(self.issued, number_of(epoch))

    def end(self, session: Session) -> None:
        del self._sessions[session.client]
        self._named.pop(session.client, None)
        self.sent_before.pop(session.client, None)

    # ── names ────────────────────────────────────────────────────────────────────────────

    def name(self, session: Session, sequence: int, name: str) -> None:
        """Record the name that the client gave to an advertisement or subscription."""
        session.names[sequence] = name
        index = self._named.get(session.client)
        if index is not None:
            index.setdefault(name, {})[sequence] = None

    def named(self, session: Session, name: str) -> list[int]:
        """The sequences of the client's entries with this name."""
        index = self._named.get(session.client)
        if index is None:
            index = self._named[session.client] = {}
            for sequence, each in session.names.items():
                index.setdefault(each, {})[sequence] = None
        return list(index.get(name, ()))

    def forget(self, session: Session, sequence: int) -> None:
        """An advertisement or subscription has ended."""
        name = session.names.pop(sequence, None)
        session.done.pop(sequence, None)
        session.since.pop(sequence, None)
        self._forget_sent(session, sequence)
        index = self._named.get(session.client)
        if name is not None and index is not None:
            same = index[name]
            del same[sequence]
            if not same:
                del index[name]

    def _forget_sent(self, session: Session, sequence: int) -> None:
        sent = self.sent_before.get(session.client, {})
        if sent.pop(sequence, None) is not None and not sent:
            del self.sent_before[session.client]

    def forgotten(self, client: str, resume: str | None, answered: int) -> str:
        """What a reconnecting client has from us that we do not know; empty if nothing. All state
        is durable before it is sent, so this happens only if our state is an older copy."""
        if resume is None or issuer_of(resume) != self._broker:
            return ""
        life, session = life_of(resume), self.current(client, resume)
        if life > self._life:
            return f"{client!r} was in session {resume}, but we are in life {self._life}"
        if life == self._life and number_of(resume) > self.issued:
            last = f"session {self.issued}" if self.issued else "none"
            return f"{client!r} was in session {resume}, but the last one we know of is {last}"
        if session is not None and answered > session.requests:
            return (
                f"{client!r} has our answer to request {answered} of session {resume}, but we "
                f"know of {session.requests}"
            )
        return ""

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def is_new(self, session: Session, request: Request) -> bool:
        """Whether this request must take effect; a repeated one is only answered again."""
        number = request.sequence
        if not 0 < number <= session.requests + 1:
            raise ProtocolError(f"request {number} of {session.client} follows {session.requests}")
        return number == session.requests + 1

    def accept(self, session: Session, request: Request, published: int = 0) -> None:
        session.requests = request.sequence
        if published:
            self.sent_before.setdefault(session.client, {})[request.sequence] = published
        session.unanswered[request.sequence] = None

    def answer(self, session: Session, reply: Done | Failed) -> bool:
        """Record an answer; false if the request was already answered."""
        if reply.sequence not in session.unanswered:
            return False
        del session.unanswered[reply.sequence]
        if isinstance(reply, Failed):
            self._forget_sent(session, reply.sequence)
        if isinstance(reply, Failed) or reply.value:
            session.failures[reply.sequence] = reply
            if len(session.failures) > REMEMBERED_FAILURES:
                del session.failures[next(iter(session.failures))]
        return True

    def answer_again(self, session: Session, sequence: int) -> Done | Failed | None:
        """The answer to a repeated request; None while it is pending."""
        if sequence in session.unanswered:
            return None
        return session.failures.get(sequence) or Done(sequence)
