"""Pubends to be tried, and their streams written out event by event."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import Raw

from motet.model import Event, OpId, Value
from motet.runtime.log import file_log
from motet.runtime.pubend import EventBatch, EventRun, Lost, PubendLog, Retention, Start

PUBEND = "b1/0"


class Row(NamedTuple):
    tick: int
    publisher: str
    epoch: str
    sequence: int
    body: bytes


Item = Row | Start | Lost


class Time:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def opened(
    folder: Path,
    *,
    segment_bytes: int = 800,
    retention: Retention | None = None,
    time: Time | None = None,
    accept_loss: bool = False,
) -> PubendLog:
    return PubendLog.open(
        folder,
        PUBEND,
        segment_bytes=segment_bytes,
        retention=retention,
        now_s=time or Time(),
        accept_loss=accept_loss,
    )


def shut(pubend: PubendLog) -> None:
    pubend.log.shut()  # type: ignore[attr-defined]


def settle(pubend: PubendLog) -> None:
    """Everything is durable, and the files are as they will be."""
    pubend.log.sync()  # type: ignore[attr-defined]


def body(payload: bytes = b"", **attributes: Value) -> Raw:
    return Raw(Event(attributes, payload).encode())


def bodies(count: int, first: int = 0) -> list[Raw]:
    return [body(b"payload %d" % number, step=number) for number in range(first, first + count)]


def rows(items: Iterable[EventBatch | Lost]) -> list[Item]:
    """Everything a read gives, one by one. The ranges must follow each other."""
    found: list[Item] = []
    behind = 0
    for item in items:
        assert item.since <= item.upto
        assert behind in (0, item.since - 1), f"a gap before {item.since}"
        behind = item.upto
        if isinstance(item, Lost):
            found.append(item)
            continue
        events = [row for record in item.records for row in expanded(record)]
        assert all(item.since <= row.tick <= item.upto for row in events)
        assert item.events == sum(isinstance(row, Row) for row in events)
        found += events
    ticks = [row.tick for row in found if not isinstance(row, Lost)]
    assert ticks == sorted(set(ticks))
    return found


def expanded(record: EventRun | Start) -> Sequence[Row | Start]:
    if isinstance(record, Start):
        return [record]
    made = [
        Row(tick, record.publisher, record.epoch, sequence, bytes(body))
        for tick, sequence, body in zip(
            range(record.first_tick, record.last_tick + 1),
            range(record.first_sequence, record.last_sequence + 1),
            record.bodies,
            strict=True,
        )
    ]
    assert len(made) == record.count
    return made


def fill(pubend: PubendLog, runs: int = 20, count: int = 10) -> list[Item]:
    """Append runs of two publishers, with starts and silence between; what was appended."""
    expected: list[Item] = []
    tick = pubend.last_tick
    for number in range(runs):
        publisher = ("alice", "bob")[number % 2]
        first = pubend.state.last_published(publisher, "e1") + 1
        made = bodies(count, number)
        pubend.append_run(tick + 1, publisher, "e1", first, made)
        expected += [
            Row(tick + 1 + at, publisher, "e1", first + at, bytes(each))
            for at, each in enumerate(made)
        ]
        tick += count
        if number % 5 == 0:
            op = OpId("carol", "e2", number + 1)
            pubend.append_start(Start(tick + 3, op))
            expected.append(Start(tick + 3, op))
            tick += 3
    settle(pubend)
    return expected


@contextlib.contextmanager
def without_syncs() -> Iterator[None]:
    """For tests that make many logs and never lose power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(file_log, "_fdatasync", lambda _: None)
        yield
