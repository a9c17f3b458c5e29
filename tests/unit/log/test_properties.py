"""Whatever is done to a log, in whatever order: it keeps a prefix, with its numbers intact."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from motet.runtime.log import FileLog, Record, inspect
from motet.runtime.log.folder import CLOSED
from motet.runtime.log.layout import SECTOR_BYTES, Encoder, LogPlace, payloads_of, walk
from tests.unit.log.ground import open_log, segments

payloads = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 1500).map(bytes),
    st.builds(
        bytes.__mul__, st.sampled_from([b"\xfe", b"\xff", b"ab", b"a\0"]), st.integers(0, 900)
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(payloads, min_size=1, max_size=8), st.integers(0, 15))))
def test_batches_come_back_and_hold_no_sector_of_zeros(
    batches: list[tuple[list[bytes], int]],
) -> None:
    encoder = Encoder(6, 99)
    pieces = [encoder.encode(group, kind) for group, kind in batches]
    whole = b"".join(head + data for head, data in pieces)
    with tempfile.TemporaryFile() as file:
        file.write(whole)
        file.flush()
        steps = list(walk(file.fileno(), LogPlace(0, 7, 99), len(whole)))
    assert [(step.payloads, step.kind) for step in steps] == batches
    assert encoder.sequence == 6 + sum(len(group) for group, _ in batches)
    assert bytes(SECTOR_BYTES) not in whole
    assert not whole or whole[-1]


@given(st.integers(1, 5), st.integers(0, 1), st.binary(max_size=60))
def test_nonsense_is_no_payload(count: int, flags: int, data: bytes) -> None:
    """A batch that verifies but does not add up was not written by us."""
    if flags and not data:
        return
    found = payloads_of(count, flags, data)
    assert found == [] or len(found) == count


class AnyLog(RuleBasedStateMachine):
    """A log beside a list of what it must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory()
        self.folder = Path(self.root.name) / "log"
        self.records: list[Record] = []
        """Everything ever appended and not lost."""
        self.safe = 0
        self.trimmed = 0
        self.sizes: dict[Path, int] = {}
        self.log: FileLog = open_log(self.folder, 3000)
        self.mark_safe()

    def mark_safe(self) -> None:
        """What is on disk now survives any crash."""
        self.log.sync()
        self.safe = len(self.records)
        assert self.log.durable == self.safe
        self.sizes = {path: path.stat().st_size for path in segments(self.folder)}

    @rule(group=st.lists(payloads, max_size=6), kind=st.integers(0, 15))
    def append(self, group: list[bytes], kind: int) -> None:
        first = len(self.records) + 1
        self.records += [Record(first + at, kind, each) for at, each in enumerate(group)]
        assert self.log.append(group, kind) == len(self.records)

    @rule()
    def sync(self) -> None:
        self.mark_safe()

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @precondition(lambda self: self.records)
    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        upto = round(share * len(self.records))
        self.trimmed = max(self.trimmed, upto)
        self.log.trim(upto)
        self.mark_safe()

    @rule()
    def reopen(self) -> None:
        self.log.shut()
        self.log = open_log(self.folder, 3000)
        assert self.log.cut_bytes == 0
        self.mark_safe()

    @rule(share=st.floats(0, 1))
    def crash(self, share: float) -> None:
        """Of what was not synced, the disk has a part."""
        self.log.shut()
        (self.folder / CLOSED).unlink()
        last = segments(self.folder)[-1]
        if self.sizes.keys() == set(segments(self.folder)):
            least, most = self.sizes[last], last.stat().st_size
            os.truncate(last, least + int(share * (most - least)))
        assert not any(report.problem for report in inspect(self.folder))
        self.log = open_log(self.folder, 3000)
        assert self.safe <= self.log.appended <= len(self.records)
        del self.records[self.log.appended :]
        self.mark_safe()

    @rule(begin=st.floats(0, 1), end=st.floats(0, 1))
    def read(self, begin: float, end: float) -> None:
        # Shares, because how much is there depends on how the thread has formed its groups.
        self.mark_safe()
        first = self.log.first + round(begin * (len(self.records) + 1 - self.log.first))
        last = first - 1 + round(end * (len(self.records) + 4 - first))
        assert list(self.log.read(first, last)) == self.records[first - 1 : last]

    @invariant()
    def positions_make_sense(self) -> None:
        assert 1 <= self.log.first <= self.trimmed + 1
        assert self.log.durable <= self.log.appended == len(self.records)

    def teardown(self) -> None:
        self.mark_safe()
        assert list(self.log.read(self.log.first)) == self.records[self.log.first - 1 :]
        self.log.shut()
        self.root.cleanup()


AnyLog.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestAnyLog = AnyLog.TestCase
