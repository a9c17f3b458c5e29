"""What can be said with `option`, checked before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from motet.client.reading import check_cursor_name
from motet.errors import MisuseError
from motet.model import Filter
from motet.spark.positions import LATEST, Position, position_in

MOST_EVENTS: Final = 1_000_000
MOST_BYTES: Final = 256 << 20
"""Of one micro-batch, if nothing else is said: much less than memory, much more than overhead."""
ADVICE: Final = "keep them longer (see retention), or set failOnDataLoss to false to go on without"
TIMEOUT_S: Final = 60.0
NOTHING: Final[Sequence[str]] = ()

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


class Reading:
    """Options as they were written. Spark does not care how their names are spelt."""

    def __init__(
        self, written: Mapping[str, str], names: Sequence[str], others: Sequence[str] = ()
    ) -> None:
        self._given = {name.lower(): value for name, value in written.items()}
        known = {name.lower() for name in (*names, *others)}
        for name in self._given:
            if name not in known:
                raise MisuseError(f"there is no option {name!r}; there are {', '.join(names)}")

    def read(self, name: str, read: Callable[[str, str], T], otherwise: T) -> T:
        text = self._given.get(name.lower())
        return otherwise if text is None else read(name, text)

    def text(self, name: str) -> str:
        return self.read(name, lambda _, text: text, "")

    def listed(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.read(name, _listed, NOTHING)))

    def count(self, name: str, otherwise: int) -> int:
        return self.read(name, _count, otherwise)

    def seconds(self, name: str, otherwise: float) -> float:
        return self.read(name, _seconds, otherwise)

    def chosen(self, name: str, yes: str, no: str, otherwise: bool = False) -> bool:
        return self.read(name, _chosen(yes, no), otherwise)


def options_in(written: Mapping[str, str]) -> Options:
    given = Reading(written, NAMES)
    brokers = given.listed("brokers")
    if not brokers:
        raise MisuseError('which brokers? Write .option("brokers", "motet://host:port,…")')
    return Options(
        brokers=brokers,
        filter=given.read("filter", lambda _, text: Filter.parse(text), None),
        columns=tuple(given.read("columns", _listed, NOTHING)),
        starting=given.read("startingPosition", position_in, None),
        ending=given.read("endingPosition", position_in, LATEST),
        max_events=given.count("maxEventsPerTrigger", MOST_EVENTS),
        max_bytes=given.count("maxBytesPerTrigger", MOST_BYTES),
        min_partitions=given.count("minPartitions", 1),
        fail_on_data_loss=given.chosen("failOnDataLoss", "true", "false", True),
        cursor=given.read("cursor", _cursor, ""),
        timeout_s=given.seconds("timeout", TIMEOUT_S),
        lag_timeout_s=given.seconds("lagTimeout", TIMEOUT_S),
        fail_on_misfits=given.chosen("misfits", "fail", "null", True),
        pushdown=given.chosen("pushdown", "true", "false"),
    )


def check_for_stream(options: Options) -> None:
    """What means nothing in a stream, or could mean something else after a restart."""
    if options.ending != LATEST:
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


def _cursor(_: str, text: str) -> str:
    check_cursor_name(text)
    return text


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
