"""What a task does: reads its slice, and goes on where it was when a broker comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from motet.client.log_batch import LogBatch
from motet.client.sync_reading import open_log_sync
from motet.errors import Disconnected, EventsLost, MisuseError
from motet.model import Filter
from motet.spark.brokers import Brokers, Patience
from motet.spark.columns import Columns, Transactions
from motet.spark.options import ADVICE, Options
from motet.spark.slices import Slice

LEAST_ROWS: Final = 5_000
MOST_ROWS: Final = 10_000
"""Of a batch for Spark: many small ones cost much, and large ones memory."""


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
    at, patience = slice.since, Patience(options.timeout_s)
    while at <= slice.upto:
        try:
            with open_log_sync(slice.url, timeout=options.timeout_s) as log:
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
                    patience.renew()
                    yield batch
        except Disconnected as problem:
            patience.after(problem)
            continue
        if at <= slice.upto and options.fail_on_data_loss:  # it was there when this was planned
            raise EventsLost(slice.pubend, at, slice.upto, advice=ADVICE)
        return


def _transactions(slice: Slice, options: Options) -> Transactions:
    brokers = Brokers((slice.url,), options.timeout_s)
    try:
        outline = brokers.outline(
            slice.pubend, since=slice.since, upto=slice.upto, every_block=True
        )
    finally:
        brokers.close()
    steps = outline.steps
    return Transactions(
        [each.upto for each in steps],
        [each.tx or None for each in steps],
        [(each.number or None) if each.tx else None for each in steps],
    )


def _misfit(batch: LogBatch, columns: Columns) -> MisuseError:
    counts = Counter(batch.misfits)
    name, count = counts.most_common(1)[0]
    return MisuseError(
        f"{name} is to be {columns.kinds[name]}, but {count} of {len(batch)} events of "
        f"{batch.pubend} between ticks {batch.since} and {batch.upto} have a value of another kind "
        f"there; ask for the right kind, leave these events out by a filter, or set misfits to "
        f"null"
    )
