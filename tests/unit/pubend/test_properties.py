"""Whatever is done to a pubend, in whatever order, it knows its stream and says what is lost."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from motet.model import Filter, OpId, decode_body
from motet.runtime.log.folder import CLOSED
from motet.runtime.pubend import Lost, Retention, Start
from tests.unit.pubend.ground import (
    Item,
    Row,
    Time,
    body,
    opened,
    rows,
    settle,
    shut,
    without_syncs,
)

PUBLISHERS = ("alice", "bob")
EPOCHS = ("e1", "e2")
KEEP = Retention(max_age_s=100.0, cursor_age_s=50.0, segment_age_s=20.0)
SEGMENT_BYTES = 400

sessions = st.tuples(st.sampled_from(PUBLISHERS), st.sampled_from(EPOCHS))


class Done(NamedTuple):
    """Something that was appended."""

    position: int
    items: tuple[Item, ...] = ()
    ended: tuple[str, str] | None = None
    cursor: tuple[str, int | None] | None = None


class AnyPubend(RuleBasedStateMachine):
    """A pubend beside a list of what was done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(without_syncs())
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "pubend"
        self.time = Time()
        self.done: list[Done] = []
        self.acknowledged = 0
        self.floor = 0
        self.lost_upto = 0
        self.safe = 0
        self.sizes: dict[Path, int] = {}
        self.pubend = self.open()
        self.mark_safe()

    def open(self):  # type: ignore[no-untyped-def]
        return opened(self.folder, segment_bytes=SEGMENT_BYTES, retention=KEEP, time=self.time)

    # ── what should be so ────────────────────────────────────────────────────────────────

    @property
    def items(self) -> list[Item]:
        return [item for each in self.done for item in each.items]

    @property
    def last_tick(self) -> int:
        return max((item.tick for item in self.items if not isinstance(item, Lost)), default=0)

    @property
    def published(self) -> dict[tuple[str, str], int]:
        known: dict[tuple[str, str], int] = {}
        for each in self.done:
            for item in each.items:
                if isinstance(item, Row):
                    known[item.publisher, item.epoch] = item.sequence
            if each.ended:
                known.pop(each.ended, None)
        return known

    @property
    def cursors(self) -> dict[str, int]:
        known: dict[str, int] = {}
        for each in self.done:
            if each.cursor:
                name, tick = each.cursor
                known.pop(name, None)
                if tick is not None:
                    known[name] = tick
        return known

    def mark_safe(self) -> None:
        """What is on disk now survives any crash."""
        settle(self.pubend)
        self.safe = self.pubend.durable
        self.sizes = {path: path.stat().st_size for path in self.folder.glob("*.log")}

    # ── what is done ─────────────────────────────────────────────────────────────────────

    @rule(session=sessions, count=st.integers(1, 6), gap=st.integers(1, 3), size=st.integers(0, 60))
    def append_run(self, session: tuple[str, str], count: int, gap: int, size: int) -> None:
        first_tick = self.pubend.last_tick + gap
        first = self.pubend.state.last_published(*session) + gap
        made = [body(bytes(size), step=first_tick + at) for at in range(count)]
        position = self.pubend.append_run(first_tick, *session, first, made)
        items = tuple(
            Row(first_tick + at, *session, first + at, bytes(each)) for at, each in enumerate(made)
        )
        self.done.append(Done(position, items))

    @rule(gap=st.integers(1, 3))
    def append_start(self, gap: int) -> None:
        start = Start(self.pubend.last_tick + gap, OpId("carol", "e9", gap))
        self.done.append(Done(self.pubend.append_start(start), (start,)))

    @rule(session=sessions)
    def forget(self, session: tuple[str, str]) -> None:
        self.done.append(Done(self.pubend.forget([session]), ended=session))

    @rule(name=st.sampled_from(["spark", "late"]), share=st.floats(0, 1))
    def set_cursor(self, name: str, share: float) -> None:
        tick = int(self.pubend.last_tick * share)
        self.done.append(Done(self.pubend.cursors.set(name, tick), cursor=(name, tick)))

    @rule(name=st.sampled_from(["spark", "late"]))
    def remove_cursor(self, name: str) -> None:
        self.done.append(Done(self.pubend.cursors.remove(name), cursor=(name, None)))

    @rule(share=st.floats(0, 1))
    def acknowledge(self, share: float) -> None:
        tick = int(self.pubend.last_tick * share)
        self.pubend.acknowledged(tick)
        self.acknowledged = max(self.acknowledged, tick)

    @rule(seconds=st.sampled_from([1.0, 30.0, 120.0]))
    def wait(self, seconds: float) -> None:
        self.time.now_s += seconds

    @rule()
    def sync(self) -> None:
        self.mark_safe()

    @rule()
    def roll(self) -> None:
        self.pubend.roll()

    @rule()
    def seal(self) -> None:
        self.mark_safe()
        before = self.pubend.first_tick
        self.pubend.seal_here()
        self.mark_safe()
        assert self.pubend.first_tick == before
        assert self.pubend.seal_here() == 0

    @rule()
    def trim(self) -> None:
        owed_behind_at_least = min([self.acknowledged, *self.cursors.values()])
        trimmed = self.pubend.trim()
        for name in trimmed.expired:
            self.done.append(Done(self.pubend.appended, cursor=(name, None)))
        self.mark_safe()
        assert trimmed.floor >= self.floor
        owed_behind = min([self.acknowledged, *self.cursors.values()])
        assert owed_behind >= owed_behind_at_least or trimmed.expired
        gone = [item for item in self.items if self.floor < item.tick <= trimmed.floor]  # type: ignore[union-attr]
        events = [item for item in gone if isinstance(item, Row)]
        assert trimmed.events == len(events)
        owed = [item for item in events if item.tick > owed_behind]
        assert trimmed.lost_events >= len(owed)
        if gone and gone[-1].tick > owed_behind:  # type: ignore[union-attr]
            self.lost_upto = trimmed.floor
        self.floor = trimmed.floor

    @rule()
    def reopen(self) -> None:
        self.mark_safe()
        shut(self.pubend)
        self.pubend = self.open()
        self.pubend.acknowledged(self.acknowledged)
        self.mark_safe()

    @rule(share=st.floats(0, 1))
    def crash(self, share: float) -> None:
        """Of what was not synced, the disk has a part."""
        shut(self.pubend)
        (self.folder / CLOSED).unlink()
        files = sorted(self.folder.glob("*.log"))
        if self.sizes.keys() == set(files):
            least, most = self.sizes[files[-1]], files[-1].stat().st_size
            os.truncate(files[-1], least + int(share * (most - least)))
        self.pubend = self.open()
        survivors = self.pubend.appended
        assert survivors >= self.safe
        self.done = [each for each in self.done if each.position <= survivors]
        self.acknowledged = min(self.acknowledged, self.last_tick)
        self.pubend.acknowledged(self.acknowledged)
        self.mark_safe()

    # ── what holds ───────────────────────────────────────────────────────────────────────

    @rule(begin=st.floats(0, 1), end=st.floats(0, 1), is_filtered=st.booleans())
    def read(self, begin: float, end: float, is_filtered: bool) -> None:
        # Shares, because how much is there depends on how the thread has formed its groups.
        self.mark_safe()
        last = self.last_tick
        since = 1 + round(begin * last)
        upto = since + round(end * (last + 2 - since))
        filter = Filter.parse("step > 9 and step < 40") if is_filtered else None
        wanted: list[Item] = [
            item
            for item in self.items
            if max(since, self.floor + 1) <= item.tick <= upto  # type: ignore[union-attr]
            and (
                filter is None
                or isinstance(item, Start)
                or filter.matches(decode_body(item.body)[0])  # type: ignore[union-attr]
            )
        ]
        if since <= min(self.floor, upto, last):
            wanted.insert(0, Lost(since, min(self.floor, upto)))
        assert rows(self.pubend.read(since, upto, filter=filter)) == wanted

    @invariant()
    def positions_make_sense(self) -> None:
        pubend = self.pubend
        assert pubend.last_tick == self.last_tick
        assert pubend.durable_tick <= pubend.last_tick
        assert pubend.first_tick == self.floor + 1
        assert pubend.holdings.lost_upto == self.lost_upto
        assert pubend.cursors.ticks() == self.cursors
        assert {
            each: pubend.state.last_published(*each) for each in pubend.state.sessions()
        } == self.published

    def teardown(self) -> None:
        self.mark_safe()
        kept = [item for item in self.items if item.tick > self.floor]  # type: ignore[union-attr]
        assert rows(self.pubend.read(self.floor + 1)) == kept
        shut(self.pubend)
        self.stack.close()


AnyPubend.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestAnyPubend = AnyPubend.TestCase
