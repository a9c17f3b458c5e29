"""Records in a history the durable items of a pubend's log, and the sessions of its broker."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from motet.audit.files import recent
from motet.audit.recorder import Recording
from motet.model.ids import TICKS_PER_S
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import LogCut, LogItem, LogRun, LogStart, Output
from motet.protocol.link.facts import ControlReceived
from motet.protocol.mobility.facts import MoveDecided
from motet.protocol.mobility.messages import MoveCommit, MoveOrdered
from motet.protocol.routing.messages import ClientHere
from motet.protocol.session.facts import SessionEnded, SessionOpened
from motet.runtime.pubend import EventBatch, EventRun, PubendLog, Start, StoredCut
from motet.runtime.pubend.records import Ticked

log = logging.getLogger("motet.broker")


KEYS: Final = {
    "logged": ("pubend", "tick"),
    "cuts": ("pubend", "tick"),
    "starts": ("pubend", "op", "tick"),
    "ends": ("pubend", "op", "tick"),
    "deeds": ("tx", "client", "number"),
}
"""The columns that identify one of our rows, by table."""
PARTS: Final = 30
"""The number of last parts of a table that are read: more seconds than the margin has."""
MARKS: Final = "recorded"
"""The table that says up to which tick all has been written."""
MARGIN_TICKS: Final = 10 * TICKS_PER_S
"""Read again before the last mark: more than the longest block of a transaction has."""


class LogHistory:
    """Is told of appended and of durable items; an item is recorded only once it is durable."""

    def __init__(self, config: BrokerConfig, name: str, into: Recording) -> None:
        self._name = name
        self._into = into
        self._appended: deque[LogItem] = deque()
        self._noted = self._tick = 0
        self._cut: LogCut | None = None
        self._known: set[tuple[object, ...]] = set()
        """The rows that an earlier life has recorded, while we catch up."""
        self._is_behind = False
        """While catching up, the time of an item is unknown: 0.0 is recorded."""
        into.add("brokers", {"broker": config.name, "is_root": config.root == config.name})
        for neighbour in config.neighbours:
            if config.name < neighbour:  # of two neighbours, one records the link
                into.add("links", {"one": config.name, "other": neighbour})

    def catch_up(self, events: PubendLog) -> None:
        """Record items of the log that an earlier life did not record because it was killed: it
        writes once a second, but on a busy machine that may take long, table after table. What is
        up to a mark was written in all of them; a life before the first mark is missing."""
        folder, who = self._into.folder, self._into.who
        known = {table: recent(folder, table, who, PARTS) for table in KEYS}
        marks = [row["tick"] for row in recent(folder, MARKS, who, PARTS)
                 if row["pubend"] == self._name]  # fmt: skip
        if not marks:  # the history begins now
            self._into.mark(MARKS, {"pubend": self._name, "tick": events.state.last_tick})
            self._into.write_now()
            return
        self._known = {
            (table, *(row[name] for name in names))
            for table, names in KEYS.items()
            for row in known[table]
        }
        self._is_behind = True
        for batch in events.read(max(max(marks) - MARGIN_TICKS, 1)):
            for record in batch.records if isinstance(batch, EventBatch) else ():
                self._note_record(record)
        self._known, self._is_behind = set(), False
        self._into.mark(MARKS, {"pubend": self._name, "tick": events.state.last_tick})

    def _note_record(self, record: Ticked) -> None:
        if isinstance(record, EventRun):
            whose = (record.publisher, record.epoch, record.first_sequence)
            self._note_run(LogRun(record.first_tick, *whose, record.bodies))
        elif isinstance(record, StoredCut):
            pubends, last = record.pubends, record.last
            cut = (record.tick, record.tx, record.number, record.switches, pubends, last)
            self._note_cut(LogCut(*cut, record.orders))
        elif isinstance(record, Start) and not record.tentative:
            self._note_start(LogStart(record.tick, record.op))

    def _add(self, table: str, row: dict[str, Any]) -> None:
        if (table, *(row[name] for name in KEYS[table])) not in self._known:
            self._into.add(table, row)

    def appended(self, items: Sequence[LogItem]) -> None:
        self._appended += items

    def durable(self, count: int) -> None:
        """The first `count` of all items are durable."""
        while self._noted < count and self._appended:
            self._noted += 1
            item = self._appended.popleft()
            if isinstance(item, LogRun):
                self._note_run(item)
            elif isinstance(item, LogCut):
                self._note_cut(item)
            elif isinstance(item, LogStart) and not item.tentative:
                self._note_start(item)
            self._tick = max(self._tick, _tick_of(item))
        self._into.mark(MARKS, {"pubend": self._name, "tick": self._tick})

    def _note_run(self, run: LogRun) -> None:
        """Events of a transaction have no sequence in their session: their tick serves as one."""
        cut = self._cut
        for at, body in enumerate(run.bodies):
            tick = run.first_tick + at
            row: dict[str, Any] = {
                "pubend": self._name,
                "tick": tick,
                "client": run.publisher,
                "epoch": run.epoch,
                "number": run.first_sequence + at,
                "body": body,
            }
            if cut is not None and cut.tick < tick <= cut.last:
                row |= {"tx": cut.tx, "epoch": "", "number": tick}
                self._note_deed(cut, run.publisher, tick)
            self._add("logged", row)

    def _note_deed(self, cut: LogCut, client: str, tick: int) -> None:
        nth = tick - cut.tick - 1
        place = cut.orders[nth] if nth < len(cut.orders) else f"{nth:06}"
        deed = {"tx": cut.tx, "place": place, "kind": "publish", "client": client, "event": tick}
        self._add("deeds", {**deed, "number": -tick, "at": self._now_s(), "answer": "Done"})

    def _now_s(self) -> float:
        return 0.0 if self._is_behind else time.time()

    def _note_cut(self, cut: LogCut) -> None:
        self._cut = cut
        place = {"pubend": self._name, "tick": cut.tick, "last": cut.last}
        self._add("cuts", {**place, "tx": cut.tx, "number": cut.number, "at": self._now_s()})
        for op, tick, ended in cut.switches:
            if ended:
                self._add("ends", {"op": str(op), "pubend": self._name, "tick": tick})
            else:
                self._note_start(LogStart(tick, op))

    def _note_start(self, start: LogStart) -> None:
        row = {"op": str(start.op), "pubend": self._name, "first": start.tick, "tick": start.tick}
        self._add("starts", row)

    def close(self) -> None:
        self._into.close()


def _tick_of(item: LogItem) -> int:
    if isinstance(item, LogRun):
        return item.first_tick + len(item.bodies) - 1
    return item.tick if isinstance(item, LogCut | LogStart) else 0


def history_of(
    config: BrokerConfig, events: PubendLog, into: Recording | None
) -> LogHistory | None:
    if into is None:
        return None
    made = LogHistory(config, events.pubend, into)
    try:
        made.catch_up(events)
    except (OSError, ValueError) as problem:  # a history is never worth a broker
        log.error("what an earlier life has not written down is not found: %s", problem)
    return made


class Lodger(NamedTuple):
    """A session of a broker, and how often it has moved."""

    client: str
    epoch: str
    number: int


class SessionHistory:
    """Records when sessions come to a broker and leave it. Is told of facts that were appended to
    the journal, and when they are durable: only then are they recorded."""

    def __init__(
        self, broker: str, sessions: Callable[[], Iterable[Lodger]], into: Recording
    ) -> None:
        self._broker = broker
        self._sessions = sessions
        self._into = into
        self._here: dict[tuple[str, str], Lodger] = {(s.client, s.epoch): s for s in sessions()}
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()
        """Rows that are not durable yet, by the position of their facts in the journal."""
        for lodger in self._here.values():
            self._into.add("stays", self._row(lodger, "found"))
        into.add("lives", {"broker": broker, "at": time.time()})

    def ran(self, client: str, process: str, what: str) -> None:
        """The code of a hosted client, in our container, has begun to run or has ended."""
        place = {"broker": self._broker, "what": what, "at": time.time()}
        self._into.add("runs", {"client": client, "process": process, **place})

    def _row(self, lodger: Lodger, what: str, **more: Any) -> dict[str, Any]:
        place = {"broker": self._broker, "what": what, "at": time.time()}
        return {**lodger._asdict(), **place, **more}

    def wrote(self, position: int, output: Output) -> None:
        """Facts were applied, and appended to the journal up to this position."""
        if not any(_concerns_sessions(fact.body) for fact in output.persist):
            return
        decided = [fact.body for fact in output.persist if type(fact.body) is MoveDecided]
        moved = {(body.client, body.epoch): body.path[-1] for body in decided}
        told = [frame for _, frame in output.deliver if type(frame) is MoveOrdered] if moved else []
        self._compare(position, moved, {each.client for each in told if not each.error})

    def _compare(self, position: int, moved: dict[tuple[str, str], str], ordered: set[str]) -> None:
        before, self._here = self._here, {(s.client, s.epoch): s for s in self._sessions()}
        for key, lodger in before.items():
            if self._here.get(key) == lodger:
                continue
            if key in moved:
                how = {"to": moved[key], "is_ordered": lodger.client in ordered}
                row = self._row(lodger, "left", **how)
            else:
                row = self._row(lodger, "ended")
            self._waiting.append((position, row))
        for key, lodger in self._here.items():
            if before.get(key) != lodger:
                what = "came" if lodger.number else "opened"
                self._waiting.append((position, self._row(lodger, what)))

    def durable(self, position: int) -> None:
        """All facts up to this position are durable."""
        while self._waiting and self._waiting[0][0] <= position:
            self._into.add("stays", self._waiting.popleft()[1])

    def close(self) -> None:
        """The broker stops in good order: everything is durable."""
        while self._waiting:
            self._into.add("stays", self._waiting.popleft()[1])
        for lodger in self._here.values():
            self._into.add("stays", self._row(lodger, "kept"))


def _concerns_sessions(body: Any) -> bool:
    kind = type(body)
    if kind is ControlReceived:
        return any(type(each) in (MoveCommit, ClientHere) for each in body.control.messages)
    return kind in (SessionOpened, SessionEnded, MoveDecided)
