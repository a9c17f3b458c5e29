"""The twin of `motet.runtime.log`: durable after a delay; a crash loses the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from motet.errors import ClosedError, DiskFailed, LogTrimmed, MisuseError
from motet.runtime.log.contract import MAX_APPEND_BYTES, USER_KINDS, Extent, Record
from motet.testing.clock import Agenda


class LogCopy(NamedTuple):
    """A backup of a log: the records that were durable when it was taken."""

    first: int
    records: tuple[Record, ...]


class SimulatedLog:
    """Records become durable in order, each group `sync_s()` after it was appended."""

    def __init__(self, agenda: Agenda, sync_s: Callable[[], float]) -> None:
        self.first = 1
        self.appended = 0
        self.durable = 0
        self._records: list[Record] = []
        """From `first` to `appended`."""
        self._rolls: list[int] = []
        """The first records of segments."""
        self._agenda = agenda
        self._sync_s = sync_s
        self._last_sync = 0.0
        self._life = 0
        self._failure: DiskFailed | None = None
        self._fails_next = False
        self._is_closed = False
        self._told: Callable[[], None] = _nobody
        self._failed: Callable[[Exception], None] | None = None

    # ── as on disk ───────────────────────────────────────────────────────────────────────

    def append(self, payloads: Sequence[bytes], kind: int = 0) -> int:
        self._check()
        if not 0 <= kind < USER_KINDS:
            raise MisuseError(f"the kind of a record is 0 to {USER_KINDS - 1}, not {kind}")
        if sum(map(len, payloads)) > MAX_APPEND_BYTES:
            raise MisuseError(f"one append takes at most {MAX_APPEND_BYTES} bytes")
        if not payloads:
            return self.appended
        before = self.appended
        self._records.extend(
            Record(sequence, kind, payload) for sequence, payload in enumerate(payloads, before + 1)
        )
        self.appended += len(payloads)
        delay_s = self._sync_s()
        if not delay_s and self.durable == before and not self._fails_next:
            self.durable = self.appended
            return self.appended
        self._last_sync = max(self._last_sync, self._agenda.now + delay_s)
        self._agenda.at(self._last_sync, self._synced, self.appended, self._life)
        return self.appended

    def watch(self, durable: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._told, self._failed = durable, failed
        if self._failure:
            self._agenda.after(0, self._tell_failure, self._life)

    def read(self, first: int, last: int | None = None) -> Iterator[Record]:
        if first < 1:
            raise MisuseError(f"records count from 1; there is no record {first}")
        if first < self.first:
            raise LogTrimmed(f"record {first} was trimmed, the oldest one kept is {self.first}")
        last = self.durable if last is None else min(last, self.durable)
        return iter(self._records[first - self.first : max(0, last + 1 - self.first)])

    def trim(self, upto: int) -> None:
        """Here every record is a segment of its own, so all records up to `upto` go."""
        self._check()
        count = min(upto, self.durable) + 1 - self.first
        if count > 0:
            del self._records[:count]
            self.first += count

    @property
    def extents(self) -> tuple[Extent, ...]:
        firsts = [self.first, *(each for each in self._rolls if each > self.first)]
        lasts = [*(each - 1 for each in firsts[1:]), self.appended]
        return tuple(
            Extent(Path("simulated"), first, last)
            for first, last in zip(firsts, lasts, strict=True)
        )

    def roll(self) -> None:
        """Begin a new segment; there is nothing to seal."""
        self._check()
        if self.appended >= max(self._rolls, default=1):
            self._rolls.append(self.appended + 1)

    def sync(self) -> None:
        """Make all appended records durable now."""
        self._check()
        self._synced(self.appended, self._life)
        self._check()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._failure is None and self.durable < self.appended:
            self._synced(self.appended, self._life)
        self._life += 1
        if self._failure and self.durable < self.appended:
            raise self._failure

    async def abandon(self) -> None:
        self._is_closed = True
        self._life += 1

    def _check(self) -> None:
        if self._failure:
            raise self._failure
        if self._is_closed:
            raise ClosedError("the log was closed before")

    def _synced(self, position: int, life: int) -> None:
        if life != self._life or self._failure:
            return
        if self._fails_next:
            self._failure = DiskFailed(
                f"the simulated disk failed; the records up to {self.durable} are durable"
            )
            self._tell_failure(life)
        elif position > self.durable:
            self.durable = position
            self._told()

    def _tell_failure(self, life: int) -> None:
        failed, self._failed = self._failed, None
        if life == self._life and failed is not None and self._failure:
            failed(self._failure)

    # ── only in simulations ──────────────────────────────────────────────────────────────

    def crash(self, survivors: int) -> None:
        """The process ends, and another one opens the log. The first `survivors` records are left:
        all durable ones, and those that the disk took anyway."""
        assert self.durable <= survivors <= self.appended
        del self._records[survivors + 1 - self.first :]
        self._begin_again()

    def copy(self) -> LogCopy:
        kept = self._records[: self.durable + 1 - self.first]
        return LogCopy(self.first, tuple(kept))

    def restore(self, copy: LogCopy) -> None:
        """The process ends, and another one opens the backup instead."""
        self.first = copy.first
        self._records = list(copy.records)
        self._begin_again()

    def fail(self) -> None:
        """Make the next sync fail; nothing becomes durable after that in this life."""
        self._fails_next = True

    def _begin_again(self) -> None:
        self.appended = self.durable = self.first + len(self._records) - 1
        self._rolls = [each for each in self._rolls if each <= self.appended + 1]
        self._life += 1
        self._last_sync = 0.0
        self._failure = None
        self._fails_next = False
        self._is_closed = False
        self._told, self._failed = _nobody, None


def _nobody() -> None:
    """Used until `watch` is called."""
