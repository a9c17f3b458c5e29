"""What a killed broker did not write of its history, its next life takes from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import Raw

from motet.audit import recorder
from motet.audit.recorder import Recording
from motet.broker.driver.history import LogHistory, history_of
from motet.model import OpId, encode_event
from motet.model.ids import TICKS_PER_S
from motet.protocol.config import BrokerConfig
from motet.protocol.contract import LogCut, LogItem, LogRun
from motet.runtime.pubend import EventRun, PubendLog, StoredCut

PUBEND, BODY = "B1.1", Raw(encode_event({"n": 1}, b""))
OLD = OpId("carol", "B1-3", 1)
FAR = 60 * TICKS_PER_S
"""Further than the margin: a busy machine has written nothing for a minute."""
EVENTS = 5


def opened(folder: Path) -> PubendLog:
    return PubendLog.open(folder, PUBEND)


def recorded(into: Path, log: PubendLog) -> tuple[LogHistory, Recording]:
    recording = Recording(into, "broker-B1")
    made = history_of(BrokerConfig("B1"), log, recording)
    assert made is not None
    return made, recording


def run(tick: int, sequence: int) -> LogRun:
    return LogRun(tick, "alice", "B1-1", sequence, [BODY])


def append(log: PubendLog, history: LogHistory, item: LogItem, count: int) -> None:
    """An item becomes durable and is told to the history."""
    if isinstance(item, LogRun):
        log.append_runs([EventRun.of(*item)])
    elif isinstance(item, LogCut):
        log.append_cut(StoredCut(*item))
    log.log.sync()  # type: ignore[attr-defined]
    history.appended([item])
    history.durable(count)


def live(log: PubendLog, history: LogHistory) -> None:
    """A transaction ends a subscription; a minute later there are more events."""
    cut = LogCut(10, "tx/1", 1, ((OLD, 10, True),), (PUBEND,), 10)
    append(log, history, run(1, 1), 1)
    append(log, history, cut, 2)
    for number in range(EVENTS):
        append(log, history, run(FAR + number, 2 + number), 3 + number)


def killed_at(table: str) -> Callable[..., Path]:
    """The process dies when it writes this table, with all tables before it on disk."""
    written = recorder.write_part

    def write(folder: Path, name: str, *more: Any) -> Path:
        if name == table:
            raise OSError("killed")
        return written(folder, name, *more)

    return write


def rows(folder: Path, table: str) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for path in (folder / table).glob("*.parquet"):
        found.update((row["pubend"], row["tick"]) for row in pq.read_table(path).to_pylist())
    return found


@pytest.mark.parametrize("table", ["logged", "ends", "cuts", "recorded"])
def test_nothing_is_missing_wherever_the_recording_of_a_killed_broker_ended(
    tmp_path: Path, table: str
) -> None:
    log, into = opened(tmp_path / "log"), tmp_path / "history"
    history, recording = recorded(into, log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "write_part", killed_at(table))
        live(log, history)
        recording.close()
    log.log.shut()  # type: ignore[attr-defined]
    assert not rows(into, table) - Counter({(PUBEND, 0): 1})
    again = opened(tmp_path / "log")
    _, recording = recorded(into, again)
    recording.close()
    again.log.shut()  # type: ignore[attr-defined]
    assert rows(into, "ends") == {(PUBEND, 10): 1}
    assert rows(into, "cuts") == {(PUBEND, 10): 1}
    ticks = [1, *range(FAR, FAR + EVENTS)]
    assert rows(into, "logged") == {(PUBEND, tick): 1 for tick in ticks}


def test_a_history_begins_where_it_is_switched_on(tmp_path: Path) -> None:
    log, into = opened(tmp_path / "log"), tmp_path / "history"
    log.append_runs([EventRun.of(*run(1, 1))])
    log.log.sync()  # type: ignore[attr-defined]
    history, recording = recorded(into, log)
    append(log, history, run(2, 2), 1)
    recording.close()
    log.log.shut()  # type: ignore[attr-defined]
    assert rows(into, "logged") == {(PUBEND, 2): 1}
