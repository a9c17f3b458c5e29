"""Records of what a client machine sends, hears and reports.

`Recorder` is the one place that turns frames and notices into records; the simulator and chaos keep
them for their checkers, and `HistoryRecorder` writes them into a history for the audit. A recorder
sees frames as they leave and arrive; it sends and changes nothing.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final

from motet.audit.recorder import Recording
from motet.audit.records import (
    ABORTED,
    ADDITIONS,
    COMMITTED,
    DONE,
    ENDLESS,
    Deal,
    Deed,
    EventRecord,
    Instance,
    InvitationHeard,
    MoveRecord,
    OperationRecord,
    OutcomeHeard,
    PendingRequest,
    SessionRecord,
    deed_row,
    event_row,
    move_row,
    operation_row,
    row_of,
    session_row,
    tell,
    transaction_row,
)
from motet.client.session.machine import ClientMachine
from motet.client.session.state import (
    Arrived,
    ClientOutput,
    Kind,
    Missed,
    Notice,
    Resolved,
    Settled,
    StreamBatch,
)
from motet.model import OpId, decode_attributes
from motet.protocol.frames import Frame
from motet.protocol.mobility.messages import MoveRefusal, MoveRequest
from motet.protocol.publication import Publication, TransactionPublication
from motet.protocol.session.messages import (
    AdvertiseRequest,
    AnswerRequest,
    BeginRequest,
    ConsentRequest,
    Decided,
    Deliver,
    Done,
    EndRequest,
    ExecuteRequest,
    Failed,
    Goodbye,
    Invited,
    InviteRequest,
    OutcomeRequest,
    Over,
    Publish,
    RoutingRequest,
    StageRequest,
    StandingEntry,
    SubscribeRequest,
    Tag,
    TxRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
    Welcome,
)
from motet.protocol.session.state import GRANTED

KINDS: Final[dict[type, Kind]] = {
    AdvertiseRequest: "advertise",
    UnadvertiseRequest: "unadvertise",
    SubscribeRequest: "subscribe",
    UnsubscribeRequest: "unsubscribe",
}
SPREADING: Final = "StillSpreading"
"""Committed, but not effective everywhere yet."""

Record = SessionRecord | OperationRecord | EventRecord | Deal | Deed


class Recorder(ABC):
    """Records one process of a client. Call `heard` before the machine takes a frame, `published`
    when it takes publications, and `watch` with its output."""

    is_claim = True
    """Whether a broker's answer means that an operation is effective."""

    def __init__(self, machine: ClientMachine, instance: Instance) -> None:
        self.machine = machine
        self.instance = instance
        self.title = machine.client
        """The name of this process in reports."""
        self.session: SessionRecord | None = None
        self.operations: dict[int, OperationRecord] = {}
        """By handle: those of the current session."""
        self._broker = ""
        """The broker that has the session."""
        self.made: dict[int, EventRecord] = {}
        """Publications by ordinal, until they are settled."""
        self._settled = 0
        self._news: deque[Welcome | Decided] = deque()
        """Frames whose effect on the machine is looked at after the machine has taken them."""
        self._delivers: deque[Deliver] = deque()

    # ── hooks that every recorder has ────────────────────────────────────────────────────

    @abstractmethod
    def now(self) -> float:
        """The time that records get, in seconds."""

    @abstractmethod
    def _event_made(self, body: bytes, sure: bool) -> EventRecord:
        """The client publishes an event."""

    @abstractmethod
    def _event_sent(self, session: SessionRecord, number: int, body: bytes) -> EventRecord:
        """An event made before is sent, with its number in the session."""

    @abstractmethod
    def _welcomed(self, frame: Welcome) -> None:
        """The machine has a session."""

    @abstractmethod
    def _came(self, handle: int, publication: Publication, pubend: str, tick: int) -> None:
        """An event has arrived for one subscription."""

    @abstractmethod
    def _missed(self, news: Missed) -> None:
        """The client was told that a range of ticks is lost."""

    # ── optional hooks ───────────────────────────────────────────────────────────────────

    def changed(self, record: Record) -> None:
        """A record is new, or has changed."""

    def close(self) -> None:
        """The recording has ended."""

    def odd(self, guarantee: str, detail: str) -> None:
        """The broker did something that no correct broker does."""

    def _moved(self, session: SessionRecord, broker: str) -> None:
        """The session of the machine is at another broker now."""

    def _added(self, operation: OperationRecord) -> None:
        """An advertisement or subscription is new."""

    def _deal_of(self, tx: str) -> Deal | None:
        """The record of a transaction; None if transactions are not recorded."""
        del tx
        return None

    def _begun(self, deal: Deal) -> None:
        """Its client has begun a transaction."""

    def _planned(self, session: SessionRecord, deal: Deal, frame: ExecuteRequest) -> None:
        """The client has asked for a plan."""

    def _staged(self, deed: Deed, body: bytes) -> None:
        """A transaction is to publish an event."""

    def _invites(self, deed: Deed) -> None:
        """A transaction invites clients."""

    def _invited_by(self, deal: Deal, called: InvitationHeard) -> None:
        deal.called.append(called)

    def _strange(self, tx: str) -> None:
        """The client is invited to an unknown transaction."""

    def _fulfilled(self, session: SessionRecord, deal: Deal, frame: Decided) -> None:
        """A transaction is committed: record what the broker has done for the client."""

    def _told(self, deal: Deal, word: OutcomeHeard, session: SessionRecord | None) -> None:
        tell(deal, word, session)

    def end_session(self, at: float) -> None:
        if self.session is not None:
            self.session.end(at)

    # ── output of the machine ────────────────────────────────────────────────────────────

    def watch(self, output: ClientOutput) -> None:
        self.look()
        for frame in output.send:
            self._sent(frame)
        for happening in output.happened:
            self._happened(happening)

    def look(self) -> None:
        """The machine has taken everything that was heard."""
        while self._news:
            news = self._news.popleft()
            if isinstance(news, Welcome):
                session, before = self.session, self._broker
                self._welcomed(news)
                self._broker = news.broker
                if session is not None and session is self.session and before != news.broker:
                    self._moved(session, news.broker)
            else:
                self._adopt_granted()

    def _adopt_granted(self) -> None:
        """Find the registrations that the broker has put in force for the machine."""
        machine = self.machine
        if self.session is None:
            return
        for each in (*machine.requests.in_force(), *machine.parts.ending.values()):
            known = self.session.operations.get(each.sequence)
            if known is not None and each.handle not in self.operations:
                if each.sequence > GRANTED:
                    known.handle = each.handle
                self.operations[each.handle] = known

    def _sent(self, frame: Frame) -> None:
        session = self.session
        if session is None:
            return  # another process has the session already: this is not received
        if type(frame) is Publish:
            self._publish(session, frame)
        elif type(frame) in KINDS:
            self._request(session, frame)  # type: ignore[arg-type]
        elif isinstance(frame, TxRequest):
            self._ask(session, frame)
        elif type(frame) is Goodbye and not frame.stay:
            self.end_session(self.now())

    def _publish(self, session: SessionRecord, frame: Publish) -> None:
        for number, body in enumerate(frame.bodies, frame.first):
            session.sent += 1
            event = self._event_sent(session, number, bytes(body))
            if event.session is None:
                event.session, event.position = session, session.sent
            elif event.session.epoch != session.epoch:
                self.odd("duplicates", f"{event} was sent in two sessions")
            # The broker has reported that it does not have it: the last transmission counts.
            event.last_position, event.sent_at = session.sent, self.now()

    def published(self, ordinals: Iterable[int], bodies: Sequence[Any], sure: bool) -> None:
        """The machine has taken publications, under these ordinals."""
        for ordinal, body in zip(ordinals, bodies, strict=True):
            self.made[ordinal] = self._event_made(bytes(body), sure)

    def _request(self, session: SessionRecord, frame: RoutingRequest) -> None:
        if frame.sequence in session.operations:
            return  # retransmitted
        now, kind = self.now(), KINDS[type(frame)]
        handle = self.machine.requests.handle_of(frame.sequence)
        session.sent += 1
        deal = self._deal_of(frame.tag.tx) if frame.tag is not None else None
        target = filter = None
        if isinstance(frame, UnadvertiseRequest | UnsubscribeRequest):
            target = session.operations.get(frame.target)
        else:
            filter = frame.filter
        if target is not None:
            target.ended_at = min(target.ended_at, now)
            if deal is None:
                target.ended_position = min(target.ended_position, session.sent)
            else:
                target.doubted_position = min(target.doubted_position, session.sent)
            self.changed(target)
        operation = OperationRecord(
            *(session, frame.sequence, handle, kind, filter),
            *(target, frame.wait, frame.timeout_s, session.sent, now),
            ended_at=session.ended_at,
            since=frame.since if isinstance(frame, SubscribeRequest) else {},
            deal=deal,
        )
        session.operations[frame.sequence] = operation
        if deal is not None and frame.tag is not None:
            self._take_part(session, deal, frame.tag, operation)
        if kind in ADDITIONS:
            self.operations[handle] = operation
            self._added(operation)
        self.changed(operation)

    def _take_part(
        self, session: SessionRecord, deal: Deal, tag: Tag, operation: OperationRecord
    ) -> None:
        """An advertisement, a subscription, or the removal of one, is part of a transaction."""
        what = operation.target or operation
        if operation.target is not None:
            what.doubts |= {operation.sequence}
        self._do(session, deal, operation.kind, tag, operation.sequence).operation = what

    def _do(self, session: SessionRecord, deal: Deal, kind: str, tag: Tag, sequence: int) -> Deed:
        now = self.now()
        deed = Deed(deal, kind, tag.order, session, sequence, now, self.instance)
        deal.deeds.append(deed)
        session.asks[sequence] = PendingRequest(kind, deal, now, deed, deal.id)
        return deed

    def _ask(self, session: SessionRecord, frame: TxRequest) -> None:
        if frame.sequence in session.asks:
            return  # retransmitted
        session.sent += 1
        now, sequence = self.now(), frame.sequence
        match frame:
            case BeginRequest(_, isolated, _, key):
                kind = "isolated" if isolated else "open"
                deal = self._begin(session, sequence, kind, key)
                session.asks[sequence] = PendingRequest("begin", deal, now, tx=deal.id)
            case ExecuteRequest(_, _, _, key):
                deal = self._begin(session, sequence, "static", key)
                self._planned(session, deal, frame)
                session.asks[sequence] = PendingRequest("execute", deal, now, tx=deal.id)
            case StageRequest(_, tag, body) | InviteRequest(_, tag, body):
                found = self._deal_of(tag.tx)
                if found is not None and isinstance(frame, StageRequest):
                    self._staged(self._do(session, found, "publish", tag, sequence), bytes(body))
                elif found is not None:
                    deed = self._do(session, found, "invite", tag, sequence)
                    deed.attributes = decode_attributes(bytes(body))
                    self._invites(deed)
            case AnswerRequest(_, tx):
                session.asks[sequence] = PendingRequest("answer", self._deal_of(tx), now, tx=tx)
            case ConsentRequest():
                session.asks[sequence] = PendingRequest("consent", None, now)
            case EndRequest(_, tx, commit):
                found = self._deal_of(tx)
                if found is not None and commit:
                    found.commit_at = min(found.commit_at, now)
                    self.changed(found)
                kind = "commit" if commit else "abort"
                session.asks[sequence] = PendingRequest(kind, found, now, tx=tx)
            case OutcomeRequest(_, tx):
                session.asks[sequence] = PendingRequest("outcome", self._deal_of(tx), now, tx=tx)

    def _begin(self, session: SessionRecord, sequence: int, kind: str, key: str) -> Deal:
        name = str(OpId(session.client, session.epoch, sequence))
        deal = Deal(name, kind, session, self.now(), key)
        self._begun(deal)
        self.changed(deal)
        return deal

    # ── frames that arrive ───────────────────────────────────────────────────────────────

    def heard(self, frame: Frame) -> None:
        """Record answers as they are on the wire: retransmitted ones must never differ."""
        self.look()
        session = self.session
        match frame:
            case Welcome():
                self._news.append(frame)
            case Deliver():
                self._delivers.append(frame)
            case _ if session is None:
                return
            case Done() | Failed():
                self._answered(session, frame)
            case Invited(tx, _, _, op, _, subscriptions):
                deal = self._deal_of(tx)
                if deal is None:
                    self._strange(tx)
                else:
                    whose = (self.now(), session.client, session.epoch)
                    self._invited_by(deal, InvitationHeard(*whose, op, subscriptions))
            case Decided(tx, number, committed):
                self._news.append(frame)
                deal = self._deal_of(tx)
                if deal is not None:
                    if committed:
                        self._fulfilled(session, deal, frame)
                    self._tell(deal, COMMITTED if committed else ABORTED, inf, session, number)
            case Over(sequence):
                operation = session.operations.get(sequence)
                if operation is not None:
                    operation.finished_at = min(operation.finished_at, self.now())
                    self.changed(operation)

    def _answered(self, session: SessionRecord, frame: Done | Failed) -> None:
        failed = frame if isinstance(frame, Failed) else None
        answer, missing = (failed.error, failed.missing) if failed else (DONE, ())
        asking = session.asks.get(frame.sequence)
        if asking is not None and asking.deed is not None:
            self._done(asking.deed, answer, session)
        elif asking is not None and asking.deal is not None:
            self._heard_of(session, asking, asking.deal, frame)
        operation = session.operations.get(frame.sequence)
        if operation is None:
            return
        is_first = not operation.answer
        odd = operation.answered(answer, self.now(), missing)
        if odd:
            self.odd("answers", odd)
        claims = self.is_claim and operation.wait and operation.deal is None
        if is_first and claims and operation.kind in ADDITIONS and failed is None:
            operation.effective_at = operation.answered_at
        self.changed(operation.target or operation)

    def _done(self, deed: Deed, answer: str, session: SessionRecord) -> None:
        """One operation in a transaction is answered."""
        deed.answer = deed.answer or answer
        if answer != DONE:
            if deed.event is not None and not deed.event.fate:
                deed.event.fate = "void"
            if deed.kind.startswith("un") and deed.operation is not None:
                self._unmark(deed, deed.operation, session)
        self.changed(deed)

    def _unmark(self, deed: Deed, operation: OperationRecord, session: SessionRecord) -> None:
        """The removal was refused: its target stays, unless another removal of it is open."""
        operation.doubts -= {deed.sequence}
        if operation.doubts:
            return
        for deal in self._all_deals():
            for each in deal.deeds:
                is_mark = each.operation is operation and each.kind.startswith("un")
                is_open = deal is deed.deal or each.answer in ("", DONE)
                if is_mark and each is not deed and is_open:
                    return
        if session.ended_at == inf and not operation.gone:
            operation.doubted_position = ENDLESS
            if not operation.is_being_removed:
                operation.ended_at = inf

    def _all_deals(self) -> Iterable[Deal]:
        """All known transactions."""
        return ()

    def _heard_of(
        self, session: SessionRecord, asking: PendingRequest, deal: Deal, frame: Done | Failed
    ) -> None:
        """An answer about a whole transaction."""
        value = frame.value if isinstance(frame, Done) else ""
        if asking.kind in ("begin", "execute") and isinstance(frame, Failed):
            deal.refused = frame.error not in ("Aborted", SPREADING)
        if asking.kind in ("execute", "commit"):
            other = self._deal_of(value) if value else None
            if isinstance(frame, Failed):
                if frame.error in ("Aborted", SPREADING):  # else it was never begun
                    outcome = ABORTED if frame.error == "Aborted" else COMMITTED
                    self._tell(deal, outcome, asking.at, session)
            elif other is not None:
                if other is deal:
                    deal.answered_at = min(deal.answered_at, self.now())
                self._tell(other, COMMITTED, asking.at, session if other is deal else None)
                if other is not deal:
                    self._check_key(deal, other)
                    self._tell(deal, ABORTED, asking.at, session)
        elif asking.kind == "outcome" and value:
            self._tell(deal, value, asking.at, None)

    def _tell(
        self,
        deal: Deal,
        outcome: str,
        asked_at: float,
        session: SessionRecord | None,
        number: int = 0,
    ) -> None:
        word = OutcomeHeard(self.now(), asked_at, self.title, outcome, number)
        self._told(deal, word, session)

    def _check_key(self, deal: Deal, other: Deal) -> None:
        if not deal.key or (deal.key, deal.session.client) != (other.key, other.session.client):
            text = f"{self.title} was told that {deal} was done before as {other}, with another key"
            self.odd("atomicity", text)

    # ── notices ──────────────────────────────────────────────────────────────────────────

    def _happened(self, news: Notice) -> None:
        if isinstance(news, StreamBatch):
            for at, publication in enumerate(news.batch):
                for handle in news.each[at] if news.each else news.every:
                    self._came(handle, publication, news.pubend, news.ticks[at])
        elif isinstance(news, Arrived):
            self._arrived(news, self._delivers.popleft())
        elif isinstance(news, Missed):
            self._missed(news)
        elif isinstance(news, Settled):
            self._settle(news)

    def _arrived(self, arrived: Arrived, frame: Deliver) -> None:
        for (handles, publication), wire in zip(arrived.batch, frame.batch, strict=True):
            if len(handles) != len(wire.subscriptions):
                self.odd(
                    "soundness",
                    f"{self.title} got {decode_attributes(publication.body)} for subscriptions "
                    f"{wire.subscriptions}, not all of which are in force",
                )
            for handle in handles:
                self._came(handle, publication, "", 0)

    def _settle(self, settled: Settled) -> None:
        refused = {refusal.sequence for refusal in settled.refused}
        for ordinal in range(self._settled + 1, settled.upto + 1):
            event = self.made.pop(ordinal)
            known = "refused" if ordinal in refused else "accepted"
            fate = "unknown" if settled.unknown is not None else known
            if event.fate and not (event.inherited and _agree(event.fate, fate)):
                self.odd("answers", f"{event} was settled twice: {event.fate}, then {fate}")
            if event.fate in ("", "unknown"):
                event.fate = fate
            event.settled_at = self.now()
            self.changed(event)
        self._settled = settled.upto


class HistoryRecorder(Recorder):
    """Writes rows into a history. A row that changes is written again, with a higher version."""

    def __init__(self, machine: ClientMachine, process: str, into: Recording) -> None:
        super().__init__(machine, process)
        self._into = into
        self._nth = 0
        self._deals: dict[str, Deal] = {}
        """Including transactions of other clients that this client hears of."""
        self._unsent: deque[EventRecord] = deque()
        self._reached: dict[str, int] = {}
        self._moves: dict[int, MoveRecord] = {}
        """By number of the request."""
        self._asked: tuple[int, MoveRecord] | None = None
        """The handle and the record of the move that the application waits for."""

    def now(self) -> float:
        return time.time()

    def close(self) -> None:
        """Write the rest; nothing follows."""
        for event in self.made.values():
            event.fate = "unknown"
            self.changed(event)
        for pubend, tick in self._reached.items():
            self._into.add("reached", {"process": self.instance, "pubend": pubend, "tick": tick})
        self._into.close()

    def changed(self, record: Record) -> None:
        if isinstance(record, OperationRecord):
            if record.kind in ADDITIONS:
                record.version += 1
                self._into.add("operations", operation_row(record))
        elif isinstance(record, EventRecord):
            if record.session is not None:  # else it was never sent
                record.session.numbered.pop(record.number, None)
                self._into.add("events", event_row(record))
        elif isinstance(record, Deal):
            if record.kind:  # else another client has begun it
                record.version += 1
                self._into.add("transactions", transaction_row(record))
        elif isinstance(record, Deed) and record.answer == DONE and record.kind != "publish":
            self._into.add("deeds", deed_row(record))  # brokers record publications

    def end_session(self, at: float) -> None:
        """Not recorded: a history has no row for the end of a client."""

    # ── moves ────────────────────────────────────────────────────────────────────────────

    def heard(self, frame: Frame) -> None:
        super().heard(frame)
        move = self._moves.get(frame.number) if isinstance(frame, MoveRefusal) else None
        if move is not None and move.answer:  # the application is not told
            move.answers += 1
            self._note(move)

    def watch(self, output: ClientOutput) -> None:
        super().watch(output)
        if self._asked is not None and self.machine.moving.asked is None:
            self._answer(self._asked[1], "NoAnswer", "nobody waits any longer", answers=0)

    def _sent(self, frame: Frame) -> None:
        if isinstance(frame, MoveRequest) and frame.number not in self._moves:
            machine, asked = self.machine, self.machine.moving.asked
            who, to = (machine.client, self.instance, frame.number), (frame.to, frame.timeout_s)
            move = MoveRecord(*who, *to, self.now(), (machine.broker, machine.epoch))
            self._moves[frame.number] = move
            self._note(move)
            if asked is not None:
                self._asked = asked.handle, move
        super()._sent(frame)

    def _answer(self, move: MoveRecord, answer: str, text: str = "", *, answers: int = 1) -> None:
        self._asked = None
        move.answer, move.text, move.answered_at = answer, text, self.now()
        move.after = (self.machine.broker, self.machine.epoch)
        move.answers += answers
        self._note(move)

    def _note(self, move: MoveRecord) -> None:
        move.version += 1
        self._into.add("moves", move_row(move))

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def _welcomed(self, frame: Welcome) -> None:
        before, now, machine = self.session, self.now(), self.machine
        if before is not None and before.epoch == frame.epoch:
            return
        for old in before.operations.values() if before is not None else ():
            old.gone, old.ended_at = True, min(old.ended_at, now)  # lost with the session
            self.changed(old)
        self._reached, self.operations = {}, {}
        whose = (machine.client, self.instance, frame.epoch, frame.broker)
        self.session = SessionRecord(*whose, now, total_order=machine.total_order)
        self._into.add("sessions", session_row(self.session))
        for stands in frame.standing:
            self._stands(self.session, stands)

    def _moved(self, session: SessionRecord, broker: str) -> None:
        whose = {"client": session.client, "epoch": session.epoch, "process": self.instance}
        self._into.add("moved", {**whose, "broker": broker, "at": self.now()})

    def _stands(
        self, session: SessionRecord, stands: StandingEntry, deal: Deal | None = None
    ) -> OperationRecord:
        """A registration is in force that this process has not requested: its start is unknown."""
        place = (session, stands.sequence, 0, stands.kind, stands.filter, None, False, 0.0)
        operation = OperationRecord(*place, session.sent, 0.0, deal=deal)
        operation.answered(DONE, self.now())
        session.operations[stands.sequence] = operation
        self.changed(operation)
        return operation

    # ── events ───────────────────────────────────────────────────────────────────────────

    def _event_made(self, body: bytes, sure: bool) -> EventRecord:
        event = EventRecord(0, self.machine.client, self.instance, {}, sure=sure, body=body)
        self._unsent.append(event)
        return event

    def _event_sent(self, session: SessionRecord, number: int, body: bytes) -> EventRecord:
        del body  # not unique
        event = session.numbered.get(number)
        if event is None:
            while (event := self._unsent.popleft()).fate:
                pass  # it was given up before it could be sent
            event.number = number
            session.numbered[number] = event
        return event

    def _came(self, handle: int, publication: Publication, pubend: str, tick: int) -> None:
        if handle not in self.operations:
            self._adopt_granted()
        operation = self.operations.get(handle)
        in_transaction = isinstance(publication, TransactionPublication)
        self._nth += 1
        self._into.add(
            "deliveries",
            {
                "process": self.instance,
                "handle": handle,
                "op": "" if operation is None else str(operation.id),
                "publisher": publication.publisher,
                "number": tick if in_transaction else publication.sequence,
                "pubend": pubend,
                "tick": tick,
                "nth": self._nth,
                "at": self.now(),
                "came": True,
                "taken": True,
            },
        )

    def _happened(self, news: Notice) -> None:
        super()._happened(news)
        if isinstance(news, Resolved) and self._asked is not None:
            handle, move = self._asked
            if news.handle == handle:
                failure = news.failure
                self._answer(move, *(failure[:2] if failure is not None else (DONE,)))
        elif isinstance(news, StreamBatch):
            self._reached[news.pubend] = max(news.upto, self._reached.get(news.pubend, 0))

    def _missed(self, news: Missed) -> None:
        self._into.add("losses", row_of("losses", news, process=self.instance))

    # ── transactions ─────────────────────────────────────────────────────────────────────

    def _deal_of(self, tx: str) -> Deal:
        found = self._deals.get(tx)
        if found is None:
            assert self.session is not None
            found = self._deals[tx] = Deal(tx, "", self.session, 0.0)
        return found

    def _all_deals(self) -> Iterable[Deal]:
        return self._deals.values()

    def _begun(self, deal: Deal) -> None:
        self._deals[deal.id] = deal

    def _invited_by(self, deal: Deal, called: InvitationHeard) -> None:
        row = row_of("calls", called, tx=deal.id, op=str(called.op))
        self._into.add("calls", {**row, "subscriptions": list(called.subscriptions)})

    def _fulfilled(self, session: SessionRecord, deal: Deal, frame: Decided) -> None:
        for stands in frame.added:
            self._stands(session, stands, deal)
        for number in frame.ended:
            operation = session.operations.get(number)
            if operation is not None and not operation.gone:
                operation.gone, operation.ended_at = True, min(operation.ended_at, self.now())
                operation.ended_position = min(operation.ended_position, session.sent + 1)
                self.changed(operation)

    def _told(self, deal: Deal, word: OutcomeHeard, session: SessionRecord | None) -> None:
        self._into.add("words", row_of("words", word, tx=deal.id))
        heirs, open_deeds = len(deal.heirs), [each for each in deal.deeds if not each.concluded]
        if word.outcome in (COMMITTED, ABORTED):
            deal.outcome = word.outcome
            self.changed(deal)
        super()._told(deal, word, session)
        if session is not None and len(deal.heirs) > heirs:
            whose = {"client": session.client, "epoch": session.epoch}
            self._into.add("hearers", {"tx": deal.id, **whose})
        for deed in open_deeds:
            if deed.concluded and deed.operation is not None:
                self.changed(deed.operation)


def _agree(inherited: str, known: str) -> bool:
    """A process that took over may know less of an event than its publisher, or more. That an event
    was refused, its broker knows only until it dies."""
    unpublished = (inherited, known) == ("void", "refused")
    return inherited == known or "unknown" in (inherited, known) or unpublished
