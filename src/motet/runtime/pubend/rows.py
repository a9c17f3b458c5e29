"""The second reading of a segment that is to be sealed: rows on their way into a block."""

from __future__ import annotations

from array import array
from itertools import accumulate, islice
from typing import Any, Final

from motet.model import Value
from motet.runtime.pubend.index import Runs
from motet.runtime.pubend.records import RUN, Run
from motet.runtime.pubend.survey import contents_of

BLOCK_ROWS: Final = 16_384
BLOCK_BYTES: Final = 8 << 20
RUN_EVENTS: Final = 1024
RUN_BYTES: Final = 256 * 1024
"""Runs that follow each other become one, up to this size."""
PAIR: Final = 0x92
"""How a body begins: attributes and payload follow."""


class Rows:
    def __init__(self, names: dict[str, int]) -> None:
        self._names = names
        """The numbers of publishers and epochs."""
        self.bodies: list[Any] = []
        self.attributes: list[dict[str, Value]] = []
        self.payload_sizes = array("I")
        self.offsets = array("i", [0])
        self.runs = Runs([], [], [], [], [], [], [])
        self.size_bytes = 0
        self.last_tick = 0
        self.are_plain = True
        """Attributes and payload of every event can be found by the size of the payload."""

    @property
    def is_full(self) -> bool:
        return len(self.bodies) >= BLOCK_ROWS or self.size_bytes >= BLOCK_BYTES

    def add_run(self, run: Run) -> None:
        bodies = run.bodies
        contents = contents_of(run)
        self.attributes += [attributes for attributes, _ in contents]
        sizes = [len(payload) for _, payload in contents]
        self.payload_sizes.extend(sizes)
        self.are_plain = self.are_plain and all(map(_is_plain, bodies, sizes))
        if not self._continues(run):
            self._begin(RUN, run.first_tick, run.publisher, run.epoch, run.first_sequence)
        self._put(bodies)
        self.last_tick = run.last_tick

    def add_other(self, kind: int, tick: int, payload: bytes) -> None:
        self._begin(kind, tick, "", "", 0)
        self.attributes.append({})
        self.payload_sizes.append(0)
        self._put([payload])
        self.last_tick = tick

    def _continues(self, run: Run) -> bool:
        runs, rows = self.runs, len(self.bodies)
        if not runs.kinds or runs.kinds[-1] != RUN or run.first_tick != self.last_tick + 1:
            return False
        count = rows - runs.first_rows[-1]
        return (
            runs.publishers[-1] == self._names[run.publisher]
            and runs.epochs[-1] == self._names[run.epoch]
            and runs.first_sequences[-1] + count == run.first_sequence
            and count + run.count <= RUN_EVENTS
            and self.size_bytes - runs.first_bytes[-1] + run.size_bytes <= RUN_BYTES
        )

    def _begin(self, kind: int, tick: int, publisher: str, epoch: str, sequence: int) -> None:
        runs, names = self.runs, self._names
        runs.kinds.append(kind)
        runs.first_ticks.append(tick)
        runs.publishers.append(names[publisher])
        runs.epochs.append(names[epoch])
        runs.first_sequences.append(sequence)
        runs.first_rows.append(len(self.bodies))
        runs.first_bytes.append(self.size_bytes)

    def _put(self, bodies: list[Any]) -> None:
        sizes = [len(memoryview(body)) for body in bodies]
        self.offsets.extend(islice(accumulate(sizes, initial=self.size_bytes), 1, None))
        self.bodies += bodies
        self.size_bytes = self.offsets[-1]

    def finished_runs(self) -> Runs:
        self.runs.first_rows.append(len(self.bodies))
        self.runs.first_bytes.append(self.size_bytes)
        return self.runs


def _is_plain(body: Any, payload_bytes: int) -> bool:
    """As `split_bodies` takes it to be: see `motet.runtime.pubend.tables`."""
    head = packed_head(payload_bytes)
    end = len(view := memoryview(body)) - payload_bytes
    return view[0] == PAIR and view[end - len(head) : end] == head


def packed_head(size_bytes: int) -> bytes:
    """What msgpack writes before so many bytes."""
    if size_bytes < 1 << 8:
        return b"\xc4" + size_bytes.to_bytes(1, "big")
    if size_bytes < 1 << 16:
        return b"\xc5" + size_bytes.to_bytes(2, "big")
    return b"\xc6" + size_bytes.to_bytes(4, "big")
