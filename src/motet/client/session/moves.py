"""The moves of a client between brokers: asked for by the application, or told by a broker.

    asked ── MoveRefusal ──▶ failed
      └───── Moved ──▶ on the way ── Welcome ──▶ settled

A request is sent again after each welcome until it is answered, and counts as done when the client
is welcomed at the broker that it asked for, however it came there.
"""

from __future__ import annotations

from dataclasses import dataclass

from motet import errors
from motet.client.session.state import Failure, Redirected, Resolved, SessionState, Welcomed
from motet.protocol.frames import PROTOCOL_VERSION
from motet.protocol.mobility.messages import ArrivalHello, Moved, MoveRefusal, MoveRequest
from motet.protocol.session.messages import ClientHello

LOST_MOVE = (
    "the session was lost before the client moved, and a new one is open at {broker}; move again"
)


@dataclass(slots=True)
class AskedMove:
    handle: int
    number: int
    to: str
    timeout_s: float

    def frame(self) -> MoveRequest:
        return MoveRequest(self.number, self.to, self.timeout_s)


class ClientMoves:
    def __init__(self, session: SessionState) -> None:
        self._session = session
        self._numbers = 0
        self.asked: AskedMove | None = None
        """The move that the application waits for."""
        self.told: Moved | None = None
        """Where the session is. The client is on its way there."""
        self.impatient = False
        """The client does not wait for its session, and opens a new one."""

    # ── asking ───────────────────────────────────────────────────────────────────────────

    def check_asking(self) -> None:
        if self._session.state == "ended":
            client = self._session.client
            raise errors.ClosedError(f"cannot move: the session of {client!r} has ended")
        if self.asked is not None:
            raise errors.MisuseError(
                f"{self._session.client} is moving to {self.asked.to}; wait until this has ended"
            )

    def ask(self, handle: int, to: str, timeout_s: float, broker: str | None) -> None:
        if to == broker and self.told is None:
            self._session.happened.append(Resolved(handle, None, to))
            return
        self._numbers += 1
        self.asked = AskedMove(handle, self._numbers, to, timeout_s)
        if self._session.state == "open":
            self._session.send.append(self.asked.frame())

    def abandon(self, handle: int) -> None:
        """Nobody waits for this move any longer, but it may still happen."""
        if self.asked is not None and self.asked.handle == handle:
            self.asked = None

    # ── the broker ───────────────────────────────────────────────────────────────────────

    def hello(self, usual: ClientHello) -> ClientHello | ArrivalHello:
        if self.told is None or self.impatient:
            return usual
        return ArrivalHello(PROTOCOL_VERSION, usual, self.told.number)

    def moved(self, frame: Moved) -> None:
        self.told = frame
        self._session.happened.append(Redirected(frame.broker, frame.address))

    def refused(self, frame: MoveRefusal) -> None:
        if not 0 < frame.number <= self._numbers:
            raise errors.ProtocolError(f"an answer to move {frame.number}, which was never made")
        if self.asked is not None and self.asked.number == frame.number:
            self._resolve(Failure(frame.error, frame.text, frame.missing))

    def welcomed(self, news: Welcomed) -> None:
        self.told = None
        self.impatient = False
        if self.asked is None:
            return
        if news.broker == self.asked.to:
            self._resolve(None, news.broker)
        elif news.how == "lost":
            text = LOST_MOVE.format(broker=news.broker)
            self._resolve(Failure("UnavailableError", text))
        else:
            self._session.send.append(self.asked.frame())

    def end(self, failure: Failure) -> None:
        self.told = None
        self.impatient = False
        if self.asked is not None:
            self._resolve(failure)

    def _resolve(self, failure: Failure | None, value: str = "") -> None:
        asked, self.asked = self.asked, None
        assert asked is not None
        self._session.happened.append(Resolved(asked.handle, failure, value))

    # ── for tests and the simulator ──────────────────────────────────────────────────────

    def claims(self) -> dict[str, bool]:
        """Invariants."""
        return {
            "an open session is not elsewhere": self._session.state != "open" or self.told is None,
            "only a client on its way is impatient": self.told is not None or not self.impatient,
            "an end leaves no move": self._session.state != "ended" or self.asked is None,
        }
