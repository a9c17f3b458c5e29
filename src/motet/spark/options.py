"""What can be said with `option`, checked before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from motet.errors import MisuseError
from motet.model import Filter
from motet.spark.positions import EARLIEST, LATEST, Position, position_in

MOST_EVENTS: Final = 1_000_000
MOST_BYTES: Final = 256 << 20
"""Of one micro-batch, if nothing else is said: much less than memory, much more than overhead."""
TIMEOUT_S: Final = 60.0

T = TypeVar("T")


class Options(Struct, frozen=True):
    brokers: tuple[str, ...]
    filter: Filter | None
    columns: tuple[str, ...]
    """As they were written; none: those of the stream."""
    starting: Position | None
    ending: Position
    max_events: int
    max_bytes: int
    min_partitions: int
    fail_on_data_loss: bool
    cursor: str
    timeout_s: float
    """How long brokers may be away."""
    lag_timeout_s: float
    """How long a transaction may be at one pubend and not at another."""
    fail_on_misfits: bool
    pushdown: bool


NAMES: Final = (
    "brokers",
    "filter",
    "columns",
    "startingPosition",
    "endingPosition",
    "maxEventsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "cursor",
    "timeout",
    "lagTimeout",
    "misfits",
    "pushdown",
)


def options_in(written: Mapping[str, str]) -> Options:
    given = {name.lower(): value for name, value in written.items()}
    known = {name.lower(): name for name in NAMES}
    for name in given:
        if name not in known:
            raise MisuseError(f"there is no option {name!r}; there are {', '.join(NAMES)}")

    def option(name: str, read: Callable[[str, str], T], otherwise: T) -> T:
        text = given.get(name.lower())
        return otherwise if text is None else read(name, text)

    nothing: Sequence[str] = ()
    brokers = option("brokers", _listed, nothing)
    if not brokers:
        raise MisuseError('which brokers? Write .option("brokers", "motet://host:port,…")')
    return Options(
        brokers=tuple(dict.fromkeys(brokers)),
        filter=option("filter", lambda _, text: Filter.parse(text), None),
        columns=tuple(option("columns", _listed, nothing)),
        starting=option("startingPosition", position_in, None),
        ending=option("endingPosition", position_in, LATEST),
        max_events=option("maxEventsPerTrigger", _count, MOST_EVENTS),
        max_bytes=option("maxBytesPerTrigger", _count, MOST_BYTES),
        min_partitions=option("minPartitions", _count, 1),
        fail_on_data_loss=option("failOnDataLoss", _chosen("true", "false"), True),
        cursor=option("cursor", lambda _, text: text, ""),
        timeout_s=option("timeout", _seconds, TIMEOUT_S),
        lag_timeout_s=option("lagTimeout", _seconds, TIMEOUT_S),
        fail_on_misfits=option("misfits", _chosen("fail", "null"), True),
        pushdown=option("pushdown", _chosen("true", "false"), False),
    )


def check_for_stream(options: Options) -> None:
    """What means nothing in a stream, or could mean something else after a restart."""
    if options.ending not in (LATEST, EARLIEST) or options.ending == EARLIEST:
        raise MisuseError("a stream has no end: endingPosition is for batch reads")
    if options.pushdown:
        raise MisuseError('conditions are not pushed down in streams: use option("filter", …)')


def _listed(_: str, text: str) -> Sequence[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _count(name: str, text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise MisuseError(f"{name} is a number from 1 on, not {text!r}")
    return count


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise MisuseError(f"{name} is a number of seconds above 0, not {text!r}")
    return seconds


def _chosen(yes: str, no: str) -> Callable[[str, str], Any]:
    def chosen(name: str, text: str) -> bool:
        if text.lower() not in (yes, no):
            raise MisuseError(f"{name} is {yes} or {no}, not {text!r}")
        return text.lower() == yes

    return chosen
