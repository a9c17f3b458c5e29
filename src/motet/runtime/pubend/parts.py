"""The parts of a pubend's log, and which ticks each of them has.

A part has every tick behind its floor, up to the floor of the next one. So a tick is in one part
or older than all of them, and a tick that a part has no record of was silent.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from msgspec import Struct

INDEX_BYTES: Final = 256 * 1024
"""A read in a live part begins at most about this far before the tick it looks for."""


class Live:
    """A segment of the log, in rows. Grows while it is the last part."""

    is_lost = False

    def __init__(
        self, first_sequence: int, floor: int, began_s: float, cut_before: int = 0
    ) -> None:
        self.first_sequence = first_sequence
        self.floor = floor
        self.began_s = began_s
        self.cut_before = cut_before
        """The number of the last cut up to the floor."""
        self.events = 0
        self.size_bytes = 0
        self._indexed_bytes = 0
        # Others read while one appends: what is found in `_ticks` is in `_sequences` already.
        self._sequences = [first_sequence]
        self._ticks = [floor]

    def passed(self, sequence: int, first_tick: int, events: int, size_bytes: int) -> None:
        """A record of the stream was appended or read."""
        if self.size_bytes - self._indexed_bytes >= INDEX_BYTES:
            self._sequences.append(sequence)
            self._ticks.append(first_tick)
            self._indexed_bytes = self.size_bytes
        self.events += events
        self.size_bytes += size_bytes

    def sequence_before(self, tick: int) -> int:
        """A record at or before the one that has this tick."""
        return self._sequences[max(bisect_right(self._ticks, tick) - 1, 0)]


class Sealed(Struct, frozen=True):
    """A segment that was rewritten by columns, and went."""

    first_sequence: int
    last_sequence: int
    """Of the records that were rewritten."""
    floor: int
    last_tick: int
    events: int
    size_bytes: int
    began_s: float
    arrow_bytes: int
    arrow_checksum: int
    index_checksum: int
    is_lost: bool = False
    """The files were damaged or went, and somebody decided to go on without them."""
    cut_before: int = 0
    """The number of the last cut up to the floor."""


Part = Live | Sealed


def part_with(parts: tuple[Part, ...], tick: int) -> int:
    """The number of the part that has this tick; -1 if it is older than all."""
    return bisect_right(parts, tick - 1, key=lambda part: part.floor) - 1
