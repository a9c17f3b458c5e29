"""The session machine: epochs, requests that take effect once, and their answers."""

from __future__ import annotations

from collections.abc import Iterator

from motet.errors import InvariantError, ProtocolError
from motet.protocol.session.messages import Done, Failed, Request
from motet.protocol.session.state import Session

REMEMBERED_FAILURES = 4096
"""More than the requests a client may have under way at once."""


class Sessions:
    """Changed only while a fact is applied."""

    def __init__(self, broker: str, incarnation: int) -> None:
        self._broker = broker
        self.issued = incarnation
        """The number of the last epoch."""
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, client: str) -> Session | None:
        return self._sessions.get(client)

    def current(self, client: str, epoch: str) -> Session | None:
        session = self._sessions.get(client)
        return session if session is not None and session.epoch == epoch else None

    def open(self, client: str) -> Session:
        """A new epoch. The number starts at the broker's incarnation, so that even a broker
        that lost its state never issues an epoch again."""
        if client in self._sessions:
            raise InvariantError(f"{client} has a session already")
        self.issued += 1
        session = Session(client, f"{self._broker}-{self.issued}")
        self._sessions[client] = session
        return session

    def restore(self, session: Session) -> None:
        """Put a session back that a snapshot kept."""
        self._sessions[session.client] = session

    def end(self, session: Session) -> None:
        del self._sessions[session.client]

    # ── requests ─────────────────────────────────────────────────────────────────────────

    def is_new(self, session: Session, request: Request) -> bool:
        """Whether this request must take effect; an old one only wants its answer again."""
        if not 0 < request.sequence <= session.requests + 1:
            raise ProtocolError(
                f"request {request.sequence} of {session.client} follows {session.requests}"
            )
        return request.sequence == session.requests + 1

    def accept(self, session: Session, request: Request) -> None:
        session.requests = request.sequence
        session.unanswered[request.sequence] = None

    def answer(self, session: Session, reply: Done | Failed) -> bool:
        """Record an answer; false if the request was answered before."""
        if reply.sequence not in session.unanswered:
            return False
        del session.unanswered[reply.sequence]
        if isinstance(reply, Failed):
            session.failures[reply.sequence] = reply
            if len(session.failures) > REMEMBERED_FAILURES:
                del session.failures[next(iter(session.failures))]
        return True

    def answer_again(self, session: Session, sequence: int) -> Done | Failed | None:
        """The answer to a request that was sent again; None while there is none yet."""
        if sequence in session.unanswered:
            return None
        return session.failures.get(sequence) or Done(sequence)
