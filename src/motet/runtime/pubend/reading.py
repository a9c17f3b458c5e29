"""Reading a range of ticks: from part to part, while others append, seal and trim."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from motet.errors import LogTrimmed
from motet.runtime.log import Log
from motet.runtime.pubend.batches import Batch, Gathering, Lost, Sieve, Sifted
from motet.runtime.pubend.opening import decoded
from motet.runtime.pubend.parts import Live, Part, part_with
from motet.runtime.pubend.records import RUN, TICKED, Run, Ticked, first_tick_of, last_tick_of
from motet.runtime.pubend.shelf import Shelf


class Reading:
    def __init__(
        self,
        pubend: str,
        log: Log,
        shelf: Shelf,
        parts: Callable[[], tuple[Part, ...]],
        sieve: Sieve,
    ) -> None:
        self._pubend = pubend
        self._log = log
        self._shelf = shelf
        self._parts = parts
        self._sieve = sieve

    def batches(
        self, since: int, last: int, limit_events: int | None, limit_bytes: int | None
    ) -> Iterator[Batch | Lost]:
        """The stream from tick `since` to tick `last`, which is durable."""
        gathering = Gathering(since, limit_events, limit_bytes)
        at = since
        while at <= last:
            parts = self._parts()
            number = part_with(parts, at)
            if number < 0 or parts[number].is_lost:
                if at > gathering.since:
                    yield gathering.out(at - 1)
                upto = min(last, parts[number + 1].floor)
                yield Lost(at, upto)
                at = upto + 1
                gathering.skip(at)
                continue
            upto = min(last, parts[number + 1].floor) if number + 1 < len(parts) else last
            try:
                for sifted in self._pieces(parts, number, at, upto):
                    cut = gathering.take(sifted)
                    at = (sifted.upto if cut is None else cut) + 1
                    if cut is not None or gathering.wants_out:
                        yield gathering.out(at - 1)
                    if cut is not None:
                        return
            except (LogTrimmed, FileNotFoundError):
                # It was sealed or trimmed meanwhile: look again, from here. A part that is still
                # among them has really gone, and reading it said so.
                if parts[number] in self._parts():
                    raise
                continue
            at = upto + 1
        if at > gathering.since:
            yield gathering.out(at - 1)

    def _pieces(
        self, parts: tuple[Part, ...], number: int, since: int, upto: int
    ) -> Iterator[Sifted]:
        part = parts[number]
        if not isinstance(part, Live):
            return self._shelf.read(part, since, upto, self._sieve)
        following = parts[number + 1] if number + 1 < len(parts) else None
        last = following.first_sequence - 1 if following is not None else None
        return self._rows(part, last, since, upto)

    def _rows(self, part: Live, last: int | None, since: int, upto: int) -> Iterator[Sifted]:
        for record in self._log.read(part.sequence_before(since), last):
            if record.kind not in TICKED:
                continue
            content: Ticked = decoded(record, f"the log of {self._pubend}")
            if last_tick_of(content) < since:
                continue
            if first_tick_of(content) > upto:
                return
            if record.kind != RUN:
                yield Sifted([content], last_tick_of(content), 0, 0, 0)
                continue
            assert isinstance(content, Run)
            yield self._sieve.sifted(content.part(since, upto))
