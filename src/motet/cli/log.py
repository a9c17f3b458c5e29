"""`motet log`: read what was published at a broker, see how much is kept, set cursors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from motet.cli.ending import FAILED, FINE, Misuse, complain
from motet.cli.notation import words_of_attributes
from motet.cli.options import Json, Url
from motet.cli.voice import out, remark, say, say_json, table
from motet.client.asking import OnLoss, Place
from motet.client.log_batch import LogBatch
from motet.client.sync_reading import open_log_sync
from motet.model.values import parse_timestamp, show_timestamp
from motet.protocol.reading.messages import PubendAccount

log = typer.Typer(
    name="log",
    help="Read what was published exactly once at a broker, days later if it is kept.",
    no_args_is_help=True,
)

Pubend = Annotated[str | None, typer.Option(help="One of the broker's pubends [all].")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the broker.")]


@log.command("list")
def list_(url: Url, timeout: Timeout = 10.0, json: Json = False) -> int:
    """Show the pubends of a broker: which ticks are kept, how much that is, what was lost."""
    with open_log_sync(url, timeout=timeout) as broker:
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
                f"the log of {each.pubend} up to tick {each.destroyed_upto} was destroyed, and "
                "with it all named cursors that were set before"
            )


@log.command()
def cursors(url: Url, timeout: Timeout = 10.0, json: Json = False) -> int:
    """Show who holds back how much: every cursor, and how many ticks it is behind."""
    with open_log_sync(url, timeout=timeout) as broker:
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
    url: Url,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose cursor it is.")],
    to: Annotated[
        int | None, typer.Option(min=0, help="The last tick that its owner is done with.")
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Keep nothing for it any more.")] = False,
    pubend: Pubend = None,
    timeout: Timeout = 10.0,
    json: Json = False,
) -> int:
    """Set a cursor, so that the broker keeps what comes behind it; or drop one."""
    if drop == (to is not None):
        raise Misuse("a cursor is either set or dropped", "--to TICK, or --drop")
    with open_log_sync(url, timeout=timeout) as broker:
        if to is None:
            broker.drop_cursor(name, pubend=pubend)
        else:
            broker.set_cursor(name, to, pubend=pubend)
    if json:
        say_json({"cursor": name, "tick": to})
    else:
        say(f"{name} is dropped" if to is None else f"{name} is at tick {to}")
    return FINE


@log.command("read")
def read_(
    url: Url,
    filter: Annotated[str | None, typer.Argument(metavar="[FILTER]", help="What to keep.")] = None,
    pubend: Pubend = None,
    since: Annotated[
        str | None, typer.Option(help="A tick, or a time like 2026-01-31T09:30:00Z [the oldest].")
    ] = None,
    upto: Annotated[str | None, typer.Option(help="A tick or a time [the newest].")] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of the stream and attributes, like tick,sensor,level:float."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many events.")] = None,
    starts: Annotated[
        bool, typer.Option("--starts", help="Show where subscriptions begin, too.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on behind what is not kept any more.")
    ] = False,
    arrow: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an Arrow file instead.")
    ] = None,
    timeout: Timeout = 30.0,
    json: Json = False,
) -> int:
    """Read a range of what was published at a broker, filtered there.

    Exit status 1 if a part of the range is not kept any more.
    """
    on_loss: OnLoss = "tell"
    lost = False
    with open_log_sync(url, timeout=timeout) as broker, _writer(arrow, json) as write:
        batches = broker.read(
            pubend=pubend,
            since=_place("--since", since),
            upto=_place("--upto", upto),
            filter=filter,
            columns=columns.split(",") if columns is not None else None,
            limit=limit,
            starts=starts,
            on_loss=on_loss,
        )
        for batch in batches:
            for name, count in batch.misfits.items():
                remark(f"{count} values of {name} are of another kind, and left out")
            if batch.lost:
                lost = True
                what = (
                    f"ticks {batch.since} to {batch.upto} of {batch.pubend} are not kept any more"
                )
                complain(what, "" if accept_loss else "--accept-loss goes on behind them")
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
            f"{option} is neither a tick nor a time: {problem}", "for example 2026-01-31T09:30:00Z"
        ) from None


@contextlib.contextmanager
def _writer(arrow: Path | None, json: bool) -> Iterator[Any]:
    """What is done with each batch."""
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
    except OSError as problem:
        raise Misuse(f"{arrow} cannot be written: {problem.strerror or problem}") from None
    remark(f"{count} events are in {arrow}")


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
