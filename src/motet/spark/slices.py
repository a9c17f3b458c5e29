"""The ranges of pubends that tasks read, of about equal numbers of events; reading a range, which
continues when a broker returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from motet.client.logs import LogBatch, LogOutline, LogStep, open_log_sync
from motet.errors import EventsLost, MisuseError
from motet.model import Filter
from motet.spark.columns import Columns, Transactions
from motet.spark.options import ADVICE, Options, Vector
from motet.spark.planner import Brokers

SLICE_EVENTS: Final = 500_000
"""A task reads at most about this many events by default."""
STEP_EVENTS: Final = 10_000
PIECES: Final = 4
"""A slice consists of at least this many steps, so that slices are about equal."""


class Slice(InputPartition):
    """The stream of a pubend from tick `since` to tick `upto`, both included."""

    def __init__(
        self,
        url: str,
        pubend: str,
        since: int,
        upto: int,
        events: int,
        steps: Sequence[LogStep] | None = None,
    ) -> None:
        super().__init__(None)
        self.url = url
        self.pubend = pubend
        self.since = since
        self.upto = upto
        self.events = events
        self.steps = steps
        """All transactions in the range, if known."""

    def __repr__(self) -> str:
        return f"Slice({self.pubend}, {self.since}–{self.upto}, {self.events} events)"


def slices_between(
    brokers: Brokers,
    start: Vector,
    end: Vector,
    options: Options,
    known: Mapping[str, LogOutline] | None = None,
    *,
    every_block: bool = False,
) -> list[Slice]:
    """Slices of about equal numbers of events, before any filter. Outlines in `known` that start at
    the same tick are reused. With `every_block`, slices know their transactions."""
    ranges = {name: (start[name], end[name] - 1) for name in sorted(start)}
    ranges = {name: (since, upto) for name, (since, upto) in ranges.items() if since <= upto}
    parts = {name: _part(known or {}, name, *range_) for name, range_ in ranges.items()}
    same = {name: part for name, part in parts.items() if part is not None}
    asked = {name: range_ for name, range_ in ranges.items() if name not in same}
    outlines = same | _outlines(brokers, asked, options, STEP_EVENTS, every_block)
    total = sum(each.events for each in outlines.values())
    tasks = max(options.min_partitions, _tasks(total))
    size = total // tasks
    if total and size < PIECES * STEP_EVENTS and options.min_partitions > 1:
        outlines = _outlines(brokers, ranges, options, max(size // PIECES, 1), every_block)
    return [
        Slice(brokers.home(name), name, since, upto, events, _steps(outline, since, upto))
        for name, outline in outlines.items()
        for since, upto, events in divided(
            outline.since, outline.steps, _share(outline.events, tasks, total)
        )
    ]


def _part(known: Mapping[str, LogOutline], name: str, since: int, upto: int) -> LogOutline | None:
    outline = known.get(name)
    return outline.until(upto) if outline is not None and outline.since == since else None


def _steps(outline: LogOutline, since: int, upto: int) -> list[LogStep] | None:
    if not outline.every_block:
        return None
    return [each for each in outline.steps if since <= each.upto <= upto]


def _share(events: int, tasks: int, total: int) -> int:
    """The number of tasks for these events, in proportion to all events, rounded up."""
    return max(-(-events * tasks // max(total, 1)), 1)


def _tasks(events: int) -> int:
    """A power of two, like most core counts, so that no core is idle at the end."""
    return 1 << (ceil(events / SLICE_EVENTS) - 1).bit_length() if events else 1


def _outlines(
    brokers: Brokers,
    ranges: dict[str, tuple[int, int]],
    options: Options,
    step_events: int,
    every_block: bool,
) -> dict[str, LogOutline]:
    found: dict[str, LogOutline] = {}
    for name, (since, upto) in ranges.items():
        range_ = {"since": since, "upto": upto}
        outline = brokers.outline(name, **range_, step_events=step_events, every_block=every_block)
        if outline.lost and options.fail_on_data_loss:
            raise EventsLost(name, *outline.lost[0], advice=ADVICE)
        if outline.upto < upto and options.fail_on_data_loss:
            raise EventsLost(name, outline.upto + 1, upto, advice=ADVICE)
        found[name] = outline
    return found


def divided(since: int, steps: Sequence[LogStep], slices: int) -> Iterator[tuple[int, int, int]]:
    """First tick, last tick and number of events of each slice. The slices are about equal if the
    steps are small."""
    left = sum(each.events for each in steps)
    events, upto = 0, since - 1
    for step in steps:
        share = (left + events) / slices
        if events and events + step.events / 2 > share:  # closer to the share without this step
            yield since, upto, events
            since, events, slices = upto + 1, 0, max(slices - 1, 1)
        upto = step.upto
        events += step.events
        left -= step.events
    if events:
        yield since, upto, events


# ── the work of a task ───────────────────────────────────────────────────────────────────

LEAST_ROWS: Final = 5_000
MOST_ROWS: Final = 10_000
"""Of a batch for Spark: many small batches are slow, large ones take memory."""


def read_slice(
    slice: Slice, options: Options, columns: Columns, filter: Filter | None
) -> Iterator[Any]:
    """The rows of a slice as Arrow batches."""
    import pyarrow

    schema = columns.arrow_schema()
    transactions = _transactions(slice, options) if columns.tells_transactions else None
    gathered: list[Any] = []
    rows = 0
    for batch in _batches(slice, options, columns, filter):
        if batch.misfits and options.fail_on_misfits:
            raise _misfit(batch, columns)
        if len(batch):
            gathered.append(columns.batch(batch.records, transactions, schema))
            rows += len(batch)
        if rows >= LEAST_ROWS:
            yield from _parcels(pyarrow, gathered)
            gathered, rows = [], 0
    if gathered:
        yield from _parcels(pyarrow, gathered)


def _parcels(arrow: Any, gathered: list[Any]) -> Iterator[Any]:
    (whole,) = gathered if len(gathered) == 1 else (arrow.concat_batches(gathered),)
    parcels = -(-whole.num_rows // MOST_ROWS)
    size = -(-whole.num_rows // parcels)
    for at in range(0, whole.num_rows, size):
        yield whole.slice(at, size)


def _batches(
    slice: Slice, options: Options, columns: Columns, filter: Filter | None
) -> Iterator[LogBatch]:
    at = slice.since
    with open_log_sync(slice.url, timeout=options.timeout_s, wait=True) as log:
        batches = log.read(
            pubend=slice.pubend,
            since=at,
            upto=slice.upto,
            filter=filter,
            columns=columns.sent,
            on_loss="raise" if options.fail_on_data_loss else "tell",
        )
        for batch in batches:
            at = batch.upto + 1
            yield batch
    if at <= slice.upto and options.fail_on_data_loss:  # these ticks existed at planning
        raise EventsLost(slice.pubend, at, slice.upto, advice=ADVICE)


def _transactions(slice: Slice, options: Options) -> Transactions:
    steps = slice.steps
    if steps is None:  # a batch read: there may be too many for the driver
        with open_log_sync(slice.url, timeout=options.timeout_s, wait=True) as log:
            range_ = {"since": slice.since, "upto": slice.upto}
            steps = log.outline(slice.pubend, **range_, every_block=True).steps
    return Transactions(
        [each.upto for each in steps],
        [each.tx or None for each in steps],
        [(each.number or None) if each.tx else None for each in steps],
    )


def _misfit(batch: LogBatch, columns: Columns) -> MisuseError:
    counts = Counter(batch.misfits)
    name, count = counts.most_common(1)[0]
    return MisuseError(
        f"{name} is declared as {columns.kinds[name]}, but {count} of {len(batch)} events of "
        f"{batch.pubend} between ticks {batch.since} and {batch.upto} have a value of another "
        f"type; declare the right type, filter these events out, or set misfits to null"
    )
