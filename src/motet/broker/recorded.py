"""A pubend whose records are written into a history as well, once they are durable."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from motet.audit.recording import Recording
from motet.audit.writing import recent
from motet.broker.config import BrokerConfig
from motet.broker.pubend import Failed, Pubend, Told
from motet.broker.reading import Readable
from motet.model.ticks import TICKS_PER_S
from motet.protocol.contract import LogCut, LogItem, LogRun, LogStart
from motet.protocol.delivery.spans import Span
from motet.protocol.delivery.state import ReadWanted
from motet.runtime.pubend import Batch, Cut, PubendLog, Run, Start
from motet.runtime.pubend.records import Ticked

log = logging.getLogger("motet.broker")


KEYS: Final = {
    "logged": ("pubend", "tick"),
    "cuts": ("pubend", "tick"),
    "starts": ("pubend", "op", "tick"),
    "deeds": ("tx", "client", "number"),
}
"""What names a row of ours, by table."""
PARTS: Final = 30
"""So many of the last parts of a table are looked at: of more seconds than the margin has."""
MARGIN_TICKS: Final = 10 * TICKS_PER_S
"""What is older than the last row by so much has been written down, in all tables."""


class RecordedPubend:
    """In the place of the pubend that it has. Before they are durable, nobody gets events."""

    def __init__(self, pubend: Pubend, config: BrokerConfig, name: str, into: Recording) -> None:
        self._pubend = pubend
        self._name = name
        self._into = into
        self._appended: deque[LogItem] = deque()
        self._noted = 0
        self._cut: LogCut | None = None
        self._known: set[tuple[object, ...]] = set()
        """What an earlier life has written down, while we catch up with it."""
        self._is_behind = False
        """Then it is not known when things happened: 0.0 is written down for it."""
        into.add("brokers", {"broker": config.name, "is_root": config.root == config.name})
        for neighbour in config.neighbours:
            if config.name < neighbour:  # the other one writes the others
                into.add("links", {"one": config.name, "other": neighbour})

    def catch_up(self, events: PubendLog) -> None:
        """What the log has, and an earlier life did not come to write down, because it was killed:
        that wrote once a second."""
        folder, who = self._into.folder, self._into.who
        known = {table: recent(folder, table, who, PARTS) for table in KEYS}
        ticks = [row["tick"] for row in known["logged"] + known["cuts"] + known["starts"]
                 if row["pubend"] == self._name]  # fmt: skip
        if not ticks:
            return  # nobody has written anything down: the history begins now
        self._known = {
            (table, *(row[name] for name in names))
            for table, names in KEYS.items()
            for row in known[table]
        }
        self._is_behind = True
        for batch in events.read(max(max(ticks) - MARGIN_TICKS, 1)):
            for record in batch.records if isinstance(batch, Batch) else ():
                self._note_record(record)
        self._known, self._is_behind = set(), False

    def _note_record(self, record: Ticked) -> None:
        if isinstance(record, Run):
            whose = (record.publisher, record.epoch, record.first_sequence)
            self._note_run(LogRun(record.first_tick, *whose, record.bodies))
        elif isinstance(record, Cut):
            pubends, last = record.pubends, record.last
            cut = (record.tick, record.tx, record.number, record.switches, pubends, last)
            self._note_cut(LogCut(*cut, record.orders))
        elif isinstance(record, Start) and not record.tentative:
            self._note_start(LogStart(record.tick, record.op))

    def _add(self, table: str, row: dict[str, Any]) -> None:
        if (table, *(row[name] for name in KEYS[table])) not in self._known:
            self._into.add(table, row)

    def watch(self, durable: Told, failed: Failed) -> None:
        def told(count: int) -> None:
            self._note(count)
            durable(count)

        self._pubend.watch(told, failed)

    def append(self, items: Sequence[LogItem]) -> None:
        self._appended += items
        self._pubend.append(items)

    def _note(self, count: int) -> None:
        while self._noted < count and self._appended:
            self._noted += 1
            item = self._appended.popleft()
            if isinstance(item, LogRun):
                self._note_run(item)
            elif isinstance(item, LogCut):
                self._note_cut(item)
            elif not item.tentative:
                self._note_start(item)

    def _note_run(self, run: LogRun) -> None:
        """Events of a transaction have no number of their session: their tick is it."""
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
            if not ended:
                self._note_start(LogStart(tick, op))

    def _note_start(self, start: LogStart) -> None:
        row = {"op": str(start.op), "pubend": self._name, "first": start.tick, "tick": start.tick}
        self._add("starts", row)

    def forget(self, sessions: Sequence[tuple[str, str]]) -> None:
        self._pubend.forget(sessions)

    def read(self, want: ReadWanted) -> list[Span]:
        return self._pubend.read(want)

    def acknowledged(self, tick: int) -> None:
        self._pubend.acknowledged(tick)

    def describe(self) -> dict[str, Any]:
        return self._pubend.describe()

    def readable(self) -> Sequence[Readable]:
        return self._pubend.readable()

    async def close(self) -> None:
        await self._pubend.close()
        self._into.close()

    async def abandon(self) -> None:
        await self._pubend.abandon()
        self._into.close()


def recorded(
    pubend: Pubend, config: BrokerConfig, events: PubendLog, into: Recording | None
) -> Pubend:
    """As it is, if nobody asks for a history."""
    if into is None:
        return pubend
    made = RecordedPubend(pubend, config, events.pubend, into)
    try:
        made.catch_up(events)
    except (OSError, ValueError) as problem:  # a history is never worth a broker
        log.error("what an earlier life has not written down is not found: %s", problem)
    return made
