"""`motet log`: read the logs of a broker, show their sizes, set cursors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from motet.cli.console import FAILED, FINE, Misuse, complain, out, remark, say, say_json, table
from motet.cli.notation import words_of_attributes
from motet.cli.options import (
    Json,
    Url,
    argument,
    group,
    only_broker,
    option,
    split_address,
    split_word,
    switch,
)
from motet.client.logs.query import LogBatch, OnLoss, Place
from motet.client.logs.reader import open_log_sync
from motet.errors import MotetError
from motet.model.values import parse_timestamp, show_timestamp
from motet.protocol.reading.messages import PubendAccount

log = group("log", "Read the logs of a broker, and manage cursors.")

Pubend = Annotated[str | None, option("NAME", "One of the broker's pubends.", show_default="all")]
Timeout = Annotated[float, option("SECONDS", "How long to wait for the broker.", min=0.1)]


@log.command("list")
def list_(url: Url = None, timeout: Timeout = 10.0, json: Json = False) -> int:
    """List the pubends of a broker: ticks, sizes, losses."""
    with open_log_sync(only_broker(url), timeout=timeout) as broker:
        found = broker.describe()
    if json:
        say_json({"pubends": [_account(each) for each in found]})
        return FINE
    names = ("pubend", "first tick", "last tick", "events", "bytes", "sealed", "lost", "cursors")
    shown = table("", *names, right=names[1:])
    for each in found:
        numbers = (each.events, each.size_bytes, each.sealed_bytes)
        shown.add_row(
            *(each.pubend, str(each.first_tick), str(each.last_tick)),
            *(f"{number:,}" for number in numbers),
            "all before" if each.lost_events is None else f"{each.lost_events:,}",
            str(len(each.cursors)),
        )
    out().print(shown)
    _tell_of_destruction(found)
    return FINE


def _tell_of_destruction(found: Sequence[PubendAccount]) -> None:
    for each in found:
        if each.destroyed_upto:
            remark(
                f"the log of {each.pubend} was destroyed up to tick {each.destroyed_upto}; cursors "
                "that were set before that are lost"
            )


@log.command()
def cursors(url: Url = None, timeout: Timeout = 10.0, json: Json = False) -> int:
    """List all cursors, and how far behind they are."""
    with open_log_sync(only_broker(url), timeout=timeout) as broker:
        found = broker.describe()
    if json:
        say_json({each.pubend: _account(each)["cursors"] for each in found})
        return FINE
    names = ("pubend", "cursor", "tick", "behind by", "expires")
    shown = table("", *names, right=names[2:4])
    for account in found:
        for each in account.cursors:
            behind = max(account.last_tick - each.tick, 0)
            shown.add_row(
                *(account.pubend, each.name, str(each.tick), str(behind)),
                show_timestamp(datetime.fromtimestamp(round(each.expires_s), UTC)),
            )
    out().print(shown)
    _tell_of_destruction(found)
    return FINE


@log.command()
def cursor(
    url: Url = None,
    name: Annotated[str | None, argument("NAME", "The name of the cursor.")] = None,
    to: Annotated[
        int | None, option("TICK", "The last tick that its owner has processed.", min=0)
    ] = None,
    drop: Annotated[bool, switch("--drop", "Remove the cursor.")] = False,
    pubend: Pubend = None,
    timeout: Timeout = 10.0,
    json: Json = False,
) -> int:
    """Set a cursor, or drop one.

    The broker keeps the events after a cursor, within the limits of its retention.
    """
    if drop == (to is not None):
        raise Misuse("give either --to or --drop", "--to TICK sets the cursor, --drop removes it")
    url, cursor_name = split_word(url, name, "NAME")
    with open_log_sync(only_broker(url), timeout=timeout) as broker:
        if to is None:
            broker.drop_cursor(cursor_name, pubend=pubend)
        else:
            broker.set_cursor(cursor_name, to, pubend=pubend)
    if json:
        say_json({"cursor": cursor_name, "tick": to})
    else:
        done = "dropped" if to is None else f"set to tick {to}"
        say(f"cursor {cursor_name} {done}")
    return FINE


@log.command("read")
def read_(
    url: Url = None,
    filter: Annotated[
        str | None, argument("FILTER", "The events to print.", show_default="all")
    ] = None,
    pubend: Pubend = None,
    since: Annotated[
        str | None,
        option(
            "TICK|TIME",
            "Where to begin: a tick, or a time like 2026-01-31T09:30:00Z.",
            show_default="the oldest event",
        ),
    ] = None,
    upto: Annotated[
        str | None, option("TICK|TIME", "Where to end, inclusive.", show_default="the newest event")
    ] = None,
    columns: Annotated[
        str | None,
        option(
            "NAMES",
            "Columns of the stream and attributes, like tick,sensor,level:float.",
            show_default="those of the stream",
        ),
    ] = None,
    limit: Annotated[int | None, option("N", "Maximum number of events.", min=1)] = None,
    starts: Annotated[bool, switch("--starts", "Also print where subscriptions begin.")] = False,
    accept_loss: Annotated[
        bool, switch("--accept-loss", "Continue after events that are no longer kept.")
    ] = False,
    arrow: Annotated[Path | None, option("FILE", "Write an Arrow file instead of text.")] = None,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> int:
    """Print a range of logged events, filtered at the broker.

    Exit status 1 if a part of the range is no longer kept.
    """
    on_loss: OnLoss = "tell"
    lost = False
    url, rest = split_address(url, [filter] if filter is not None else [])
    if len(rest) > 1:
        raise Misuse(f"{rest[0]!r} is not an address", "motet log read [URL] [FILTER]")
    with open_log_sync(only_broker(url), timeout=timeout) as broker, _writer(arrow, json) as write:
        batches = broker.read(
            pubend=pubend,
            since=_place("--since", since),
            upto=_place("--upto", upto),
            filter=rest[0] if rest else None,
            columns=columns.split(",") if columns is not None else None,
            limit=limit,
            starts=starts,
            on_loss=on_loss,
        )
        for batch in batches:
            for name, count in batch.misfits.items():
                remark(f"{count} values of {name} have another type and are omitted")
            if batch.lost:
                lost = True
                what = f"ticks {batch.since} to {batch.upto} of {batch.pubend} are no longer kept"
                complain(what, "" if accept_loss else "--accept-loss continues after them")
                if not accept_loss:
                    break
            write(batch)
    return FAILED if lost else FINE


def _place(option: str, written: str | None) -> Place:
    if written is None:
        return None
    try:
        if written.isascii() and written.isdigit():
            return int(written)
        return parse_timestamp(written)
    except ValueError as problem:
        raise Misuse(
            f"{option} is neither a tick nor a time: {problem}",
            "write a time like 2026-01-31T09:30:00Z",
        ) from None


@contextlib.contextmanager
def _writer(arrow: Path | None, json: bool) -> Iterator[Any]:
    """The function that writes each batch."""
    if arrow is None:
        yield _say_json if json else _say
        return
    import pyarrow

    writer: Any = None
    count = 0

    def write(batch: LogBatch) -> None:
        nonlocal writer, count
        if writer is None:
            writer = pyarrow.ipc.new_file(sink, batch.records.schema)
        if len(batch):
            writer.write_batch(batch.records)
        count += len(batch)

    try:
        with pyarrow.OSFile(str(arrow), "wb") as sink:
            yield write
            if writer is not None:
                writer.close()
    except MotetError:  # from the broker; some are timeouts, which are OSErrors in Python
        raise
    except OSError as problem:
        raise Misuse(f"{arrow} cannot be written: {problem.strerror or problem}") from None
    remark(f"{count} events written to {arrow}")


def _say_json(batch: LogBatch) -> None:
    for row in batch.rows():
        say_json({name: _plain(value) for name, value in row.items()})


def _say(batch: LogBatch) -> None:
    for row in batch.rows():
        say("  ".join(f"{name}={_shown(value)}" for name, value in row.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return show_timestamp(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float) and value - value != 0:  # neither nan nor inf is JSON
        return {"float": repr(value)}
    return value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + words_of_attributes(value) + "}"
    plain = _plain(value)
    return "–" if plain is None else str(plain)


def _account(account: PubendAccount) -> dict[str, Any]:
    plain = {name: getattr(account, name) for name in account.__struct_fields__}
    plain["cursors"] = [
        {"name": each.name, "tick": each.tick, "expires_s": each.expires_s}
        for each in account.cursors
    ]
    return plain
