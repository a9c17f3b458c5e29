"""What a client writes down in a history: what it sends, what it hears, what comes.

It sees frames as they leave and arrive; it asks nothing and changes nothing. Rows of what may still
change are written again when it does, with a higher version.
"""

from __future__ import annotations

import time
from math import inf
from typing import Any, Final

from motet.audit.recording import Recording
from motet.client.happenings import Arrived, Brought, Effects, Happening, Missed
from motet.client.machine import ClientMachine
from motet.client.operation import Kind
from motet.model import OpId
from motet.protocol.frames import Frame
from motet.protocol.publication import InTransaction, Publication
from motet.protocol.session.messages import (
    AdvertiseRequest,
    BeginRequest,
    Decided,
    Done,
    EndRequest,
    ExecuteRequest,
    Failed,
    Invited,
    InviteRequest,
    OutcomeRequest,
    Over,
    Publish,
    Published,
    RoutingRequest,
    Stands,
    SubscribeRequest,
    Tag,
    TxRequest,
    UnadvertiseRequest,
    UnsubscribeRequest,
    Welcome,
)

Row = dict[str, Any]
ENDLESS: Final = 1 << 60
KINDS: Final[dict[type, Kind]] = {
    AdvertiseRequest: "advertise",
    UnadvertiseRequest: "unadvertise",
    SubscribeRequest: "subscribe",
    UnsubscribeRequest: "unsubscribe",
}
COMMITTED, ABORTED = "committed", "aborted"
SPREADING: Final = "StillSpreading"
"""Committed, though not effective everywhere yet."""


class Recorder:
    def __init__(self, machine: ClientMachine, process: str, into: Recording) -> None:
        self._machine = machine
        self._process = process
        self._into = into
        self._epoch = ""
        self._sent = 0
        self._nth = 0
        self._operations: dict[int, Row] = {}
        self._asks: dict[int, tuple[TxRequest, float]] = {}
        self._deals: dict[str, Row] = {}
        self._removals: dict[int, UnadvertiseRequest | UnsubscribeRequest] = {}
        """Requests that take something back."""
        self._unsettled: dict[int, Row] = {}
        self._ops: dict[int, str] = {}
        """By handle."""
        self._reached: dict[str, int] = {}

    def close(self) -> None:
        """Nothing comes any more."""
        self._leave_session()
        for pubend, tick in self._reached.items():
            self._into.add("reached", {"process": self._process, "pubend": pubend, "tick": tick})
        self._into.close()

    # ── sessions ─────────────────────────────────────────────────────────────────────────

    def _welcomed(self, welcome: Welcome, now: float) -> None:
        if welcome.epoch == self._epoch:
            if not welcome.forgot:
                self._settled(welcome.published, {each.sequence for each in welcome.refused}, now)
            return
        self._leave_session()
        for old in self._operations.values():  # the session is lost, and they with it
            old |= {"is_gone": True, "ended_at": min(old["ended_at"], now)}
            self._write("operations", old)
        self._reached = {}
        self._epoch, self._sent = welcome.epoch, 0
        self._operations, self._removals, self._asks, self._ops = {}, {}, {}, {}
        row = {"process": self._process, "broker": welcome.broker, "opened_at": now}
        row |= {"total_order": self._machine.total_order, "client": self._machine.client}
        self._into.add("sessions", {**row, "epoch": self._epoch})
        for stands in welcome.standing:
            self._stands(stands, now)

    def _leave_session(self) -> None:
        for row in self._unsettled.values():
            self._into.add("events", {**row, "fate": "unknown"})
        self._unsettled = {}

    def _stands(self, stands: Stands, now: float, tx: str = "") -> None:
        """Something is in force that this process has not asked for: nobody knows since when."""
        row = self._operation(stands.sequence, stands.kind, str(stands.filter), 0.0)
        row |= {"answer": "Done", "answered_at": now, "tx": tx}
        self._operations[stands.sequence] = row
        self._write("operations", row)

    def watch(self, effects: Effects) -> None:
        """What the machine has done."""
        for frame in effects.send:
            self.sent(frame)
        for happening in effects.happened:
            self.happened(happening)

    # ── frames that leave ────────────────────────────────────────────────────────────────

    def sent(self, frame: Frame) -> None:
        now = time.time()
        if type(frame) is Publish:
            self._published(frame, now)
        elif type(frame) in KINDS:
            self._requested(frame, now)  # type: ignore[arg-type]
        elif isinstance(frame, TxRequest):
            self._asked(frame, now)

    def _published(self, frame: Publish, now: float) -> None:
        whose = {"client": self._machine.client, "epoch": self._epoch}
        for number, body in enumerate(frame.bodies, frame.first):
            self._sent += 1
            row = self._unsettled.setdefault(
                number, {**whose, "number": number, "position": self._sent, "body": body}
            )
            row |= {"last_position": self._sent, "sent_at": now, "is_sure": frame.sure}

    def _operation(self, sequence: int, kind: str, filter: str, now: float) -> Row:
        client, epoch = self._machine.client, self._epoch
        return {
            "op": str(OpId(client, epoch, sequence)), "client": client, "epoch": epoch,
            "process": self._process, "number": sequence, "kind": kind, "filter": filter,
            "position": self._sent, "requested_at": now, "ended_at": inf,
            "ended_position": ENDLESS, "doubted_position": ENDLESS, "version": 0,
        }  # fmt: skip

    def _requested(self, frame: RoutingRequest, now: float) -> None:
        sequence = frame.sequence
        if sequence in self._operations or sequence in self._removals:
            return  # sent again
        self._sent += 1
        if isinstance(frame, UnadvertiseRequest | UnsubscribeRequest):
            self._removals[sequence] = frame
            target = self._operations.get(frame.target)
            if target is not None:
                place = "ended_position" if frame.tag is None else "doubted_position"
                target |= {place: min(target[place], self._sent)}
                target["ended_at"] = min(target["ended_at"], now)
                self._write("operations", target)
            return
        row = self._operation(sequence, KINDS[type(frame)], str(frame.filter), now)
        known = self._machine._unanswered.get(sequence)
        row["handle"] = known.handle if known is not None else 0
        self._ops[row["handle"]] = row["op"]
        row["wait"] = frame.wait
        if isinstance(frame, SubscribeRequest):
            row["since"] = dict(frame.since) or None
        if frame.tag is not None:
            row |= {"tx": frame.tag.tx, "tag": frame.tag}
        self._operations[sequence] = row
        self._write("operations", row)

    def _asked(self, frame: TxRequest, now: float) -> None:
        if frame.sequence in self._asks:
            return
        self._sent += 1
        self._asks[frame.sequence] = (frame, now)
        if isinstance(frame, BeginRequest):
            self._begin(frame.sequence, "isolated" if frame.isolated else "open", frame.key, now)
        elif isinstance(frame, ExecuteRequest):
            self._begin(frame.sequence, "static", frame.key, now)
        elif isinstance(frame, EndRequest) and frame.commit and frame.tx in self._deals:
            deal = self._deals[frame.tx]
            deal["commit_at"] = min(deal["commit_at"], now)
            self._write("transactions", deal)

    def _begin(self, sequence: int, kind: str, key: str, now: float) -> None:
        client = self._machine.client
        tx = str(OpId(client, self._epoch, sequence))
        whose = {"tx": tx, "client": client, "epoch": self._epoch, "key": key}
        deal = {**whose, "kind": kind, "at": now, "commit_at": inf, "outcome": "unknown"}
        self._deals[tx] = {**deal, "version": 0}
        self._write("transactions", self._deals[tx])

    # ── frames that arrive ───────────────────────────────────────────────────────────────

    def heard(self, frame: Frame) -> None:
        match frame:
            case Welcome():
                self._welcomed(frame, time.time())
            case Published(upto, refused):
                self._settled(upto, {each.sequence for each in refused}, time.time())
            case Done() | Failed():
                self._answered(frame, time.time())
            case Invited(tx, _, _, op, _, subscriptions):
                row: Row = {"tx": tx, "op": str(op), "subscriptions": list(subscriptions)}
                row |= {"client": self._machine.client, "epoch": self._epoch, "at": time.time()}
                self._into.add("calls", row)
            case Decided():
                self._decided(frame, time.time())
            case Over(sequence):
                if sequence in self._operations:
                    self._operations[sequence]["finished_at"] = time.time()
                    self._write("operations", self._operations[sequence])

    def _settled(self, upto: int, refused: set[int], now: float) -> None:
        for number in [each for each in self._unsettled if each <= upto]:
            row = self._unsettled.pop(number)
            fate = "refused" if number in refused else "accepted"
            self._into.add("events", {**row, "settled_at": now, "fate": fate})

    def _answered(self, frame: Done | Failed, now: float) -> None:
        answer = frame.error if isinstance(frame, Failed) else "Done"
        row = self._operations.get(frame.sequence)
        removal = self._removals.get(frame.sequence)
        if row is not None and "answer" not in row:
            row |= {"answer": answer, "answered_at": now}
            if answer != "Done":
                row |= {"is_gone": True, "ended_at": min(row["ended_at"], row["requested_at"])}
            elif row["wait"] and "tag" not in row:  # in a transaction, when that is
                row["effective_at"] = now
            self._write("operations", row)
            if "tag" in row and answer == "Done":
                at = row["requested_at"]
                self._deed(frame.sequence, row["kind"], row["tag"], at, {"op": row["op"]})
        elif removal is not None:
            self._removed(removal, answer, now)
        elif frame.sequence in self._asks:
            self._told(frame, *self._asks[frame.sequence], now)

    def _removed(
        self, removal: UnadvertiseRequest | UnsubscribeRequest, answer: str, now: float
    ) -> None:
        target = self._operations.get(removal.target)
        if target is None:
            return
        if removal.tag is not None:
            if answer == "Done":
                kind = KINDS[type(removal)]
                self._deed(removal.sequence, kind, removal.tag, now, {"op": target["op"]})
            return
        again = {"stayed": True, "ended_at": inf, "ended_position": ENDLESS}
        target |= again if answer == "InTransaction" else {"is_gone": True}
        self._write("operations", target)

    def _told(self, frame: Done | Failed, asked: TxRequest, at: float, now: float) -> None:
        value = frame.value if isinstance(frame, Done) else ""
        if isinstance(asked, InviteRequest) and isinstance(frame, Done):
            self._deed(asked.sequence, "invite", asked.tag, at, {"body": asked.body})
        elif isinstance(asked, OutcomeRequest) and value:
            self._word(asked.tx, value, at, now)
        elif isinstance(asked, ExecuteRequest) or (isinstance(asked, EndRequest) and asked.commit):
            own = str(OpId(self._machine.client, self._epoch, asked.sequence))
            tx = asked.tx if isinstance(asked, EndRequest) else own
            if isinstance(frame, Done):
                self._word(value or tx, COMMITTED, at, now)
                self._ended(value or tx, COMMITTED, now)
                if value and value != tx:
                    self._ended(tx, ABORTED, inf)  # it was done before, with the same key
            elif frame.error in ("Aborted", SPREADING):
                outcome = ABORTED if frame.error == "Aborted" else COMMITTED
                self._word(tx, outcome, at, now)
                self._ended(tx, outcome, inf)

    def _decided(self, frame: Decided, now: float) -> None:
        outcome = COMMITTED if frame.committed else ABORTED
        self._word(frame.tx, outcome, inf, now, frame.number)
        self._ended(frame.tx, outcome, inf)
        hearer = {"tx": frame.tx, "client": self._machine.client, "epoch": self._epoch}
        self._into.add("hearers", hearer)
        for stands in frame.added:
            self._stands(stands, now, frame.tx)
        self._conclude(frame.tx, frame.committed, now, set(frame.ended))

    # ── transactions ─────────────────────────────────────────────────────────────────────

    def _word(self, tx: str, outcome: str, asked_at: float, now: float, number: int = 0) -> None:
        said = {"tx": tx, "who": self._machine.client, "outcome": outcome, "number": number}
        self._into.add("words", {**said, "at": now, "asked_at": asked_at})

    def _ended(self, tx: str, outcome: str, answered_at: float) -> None:
        deal = self._deals.get(tx)
        if deal is not None:
            answered_at = min(answered_at, deal.get("answered_at", inf))
            deal |= {"outcome": outcome, "answered_at": answered_at}
            self._write("transactions", deal)
            self._conclude(tx, outcome == COMMITTED, time.time(), set())

    def _conclude(self, tx: str, committed: bool, now: float, gone: set[int]) -> None:
        """What has ended with a transaction, or was never there."""
        if committed:
            marks = (each for each in self._removals.values() if each.tag is not None)
            gone |= {each.target for each in marks if each.tag and each.tag.tx == tx}
        else:
            gone |= {n for n, row in self._operations.items() if row.get("tx") == tx}
        for sequence in sorted(gone):
            row = self._operations.get(sequence)
            if row is not None and not row.get("is_gone"):
                end = now if committed else row["requested_at"]
                row |= {"is_gone": True, "ended_at": min(row["ended_at"], end)}
                row["ended_position"] = min(row["ended_position"], self._sent + 1)
                self._write("operations", row)

    def _deed(self, sequence: int, kind: str, tag: Tag, at: float, more: Row) -> None:
        whose = {"client": self._machine.client, "epoch": self._epoch, "number": sequence}
        deed = {"tx": tag.tx, "place": tag.order, "kind": kind, "at": at, "answer": "Done"}
        self._into.add("deeds", {**whose, **deed, **more})

    # ── what comes ───────────────────────────────────────────────────────────────────────

    def happened(self, news: Happening) -> None:
        if isinstance(news, Brought):
            now = time.time()
            for at, (tick, publication) in enumerate(zip(news.ticks, news.batch, strict=True)):
                handles = news.each[at] if news.each else news.every
                self._came(handles, publication, now, news.pubend, tick)
            self._reached[news.pubend] = max(news.upto, self._reached.get(news.pubend, 0))
        elif isinstance(news, Arrived):
            now = time.time()
            for handles, publication in news.batch:
                self._came(handles, publication, now)
        elif isinstance(news, Missed):
            lost = {"pubend": news.pubend, "first": news.first, "last": news.last}
            self._into.add("losses", {**lost, "process": self._process})

    def _came(
        self,
        handles: tuple[int, ...],
        publication: Publication,
        now: float,
        pubend: str = "",
        tick: int = 0,
    ) -> None:
        number = tick if isinstance(publication, InTransaction) else publication.sequence
        event = {"publisher": publication.publisher, "number": number}
        event |= {"pubend": pubend, "tick": tick}
        for handle in handles:
            self._nth += 1
            seat = {"process": self._process, "handle": handle, "op": self._op_of(handle)}
            came = {"nth": self._nth, "at": now, "came": True, "taken": True}
            self._into.add("deliveries", {**seat, **event, **came})

    def _op_of(self, handle: int) -> str:
        if handle not in self._ops:
            machine = self._machine
            for each in (*machine.standing(), *machine._ending.values()):
                row = self._operations.get(each.sequence)
                if row is not None:
                    self._ops[each.handle] = row["op"]
        return self._ops.get(handle, "")

    def _write(self, table: str, row: Row) -> None:
        row["version"] += 1
        self._into.add(table, dict(row))
