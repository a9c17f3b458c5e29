"""Options of a read, checked before anything is read; offsets, as Spark stores them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Literal, Required, TypedDict, TypeVar

from msgspec import Struct

from motet.client.logs.reader import check_cursor_name
from motet.errors import MisuseError
from motet.model import Filter
from motet.model.ids import LAST_TICK, TICKS_PER_S

# ── where a read begins and ends ─────────────────────────────────────────────────────────

TRANSACTION: Final = "transaction:"


class LogPosition(Struct, frozen=True):
    """Where a read begins or ends. As an option:

    earliest                      the oldest event that is kept
    latest                        after the newest event now
    2026-11-16T08:00:00+00:00     a time; without a zone it is UTC
    {"B1.1": 1793…, "B2.1": …}    the first tick of each pubend; others as with `earliest`
    transaction:alice/…/7         just before that transaction
    """

    kind: Literal["earliest", "latest", "tick", "ticks", "transaction"]
    tick: int = 0
    """A time as a tick, the same for all pubends."""
    ticks: tuple[tuple[str, int], ...] = ()
    transaction: str = ""


EARLIEST: Final = LogPosition("earliest")
LATEST: Final = LogPosition("latest")


def position_in(name: str, text: str) -> LogPosition:
    word = text.strip()
    if word.lower() == "earliest":
        return EARLIEST
    if word.lower() == "latest":
        return LATEST
    if word.startswith("{"):
        return LogPosition("ticks", ticks=_ticks(name, word))
    if word.startswith(TRANSACTION) and word != TRANSACTION:
        return LogPosition("transaction", transaction=word.removeprefix(TRANSACTION))
    try:
        time = datetime.fromisoformat(word)
    except ValueError:
        raise MisuseError(
            f"{name} must be earliest, latest, a time, transaction:ID or ticks by pubend as JSON, "
            f"not {text!r}"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return LogPosition("tick", tick=max(int(time.timestamp() * TICKS_PER_S), 1))


def _ticks(name: str, text: str) -> tuple[tuple[str, int], ...]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise MisuseError(f"{name} is not valid JSON: {problem}") from None
    for pubend, tick in found.items():
        if type(tick) is not int or not 1 <= tick <= LAST_TICK:
            raise MisuseError(
                f"{name}: the tick of {pubend} must be a whole number of at least 1, not {tick!r}"
            )
    return tuple(sorted(found.items()))


# ── options of a read ────────────────────────────────────────────────────────────────────

MOST_EVENTS: Final = 1_000_000
MOST_BYTES: Final = 256 << 20
"""Default limits of one micro-batch: much less than memory, much more than the overhead."""
ADVICE: Final = (
    "keep them longer (see retention), or set failOnDataLoss to false to continue without"
)
TIMEOUT_S: Final = 60.0
NOTHING: Final[Sequence[str]] = ()

T = TypeVar("T")


class Options(Struct, frozen=True):
    brokers: tuple[str, ...]
    filter: Filter | None
    columns: tuple[str, ...]
    """As given; if empty, the default columns of the stream."""
    starting: LogPosition | None
    ending: LogPosition
    max_events: int
    max_bytes: int
    min_partitions: int
    fail_on_data_loss: bool
    cursor: str
    timeout_s: float
    """How long to wait for unreachable brokers."""
    lag_timeout_s: float
    """How long a transaction may be present at one pubend and missing at another."""
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


class ScanOptions(TypedDict, total=False):
    """Keywords of `motet.spark.scan`: the options of a read, except `pushdown`."""

    brokers: Required[str]
    filter: str
    columns: str
    startingPosition: str
    endingPosition: str
    maxEventsPerTrigger: int | str
    maxBytesPerTrigger: int | str
    minPartitions: int | str
    failOnDataLoss: bool | str
    cursor: str
    timeout: float | str
    lagTimeout: float | str
    misfits: str


class GivenOptions:
    """Options as given by the user. Their names are case-insensitive, as in Spark."""

    def __init__(
        self, written: Mapping[str, str], names: Sequence[str], others: Sequence[str] = ()
    ) -> None:
        self._given = {name.lower(): value for name, value in written.items()}
        known = {name.lower() for name in (*names, *others)}
        for name in self._given:
            if name not in known:
                raise MisuseError(f"unknown option {name!r}; the options are {', '.join(names)}")

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
    given = GivenOptions(written, NAMES)
    brokers = given.listed("brokers")
    if not brokers:
        raise MisuseError(
            'the option brokers is missing: write .option("brokers", "motet://host:port,…")'
        )
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
    """Refuse options that do not apply to streams."""
    if options.ending != LATEST:
        raise MisuseError("endingPosition applies only to batch reads: omit it in a stream")
    if options.pushdown:
        raise MisuseError('pushdown applies only to batch reads: use .option("filter", …)')


def _listed(_: str, text: str) -> Sequence[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _count(name: str, text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise MisuseError(f"{name} must be a whole number of at least 1, not {text!r}")
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
        raise MisuseError(f"{name} must be a number of seconds above 0, not {text!r}")
    return seconds


def _chosen(yes: str, no: str) -> Callable[[str, str], Any]:
    def chosen(name: str, text: str) -> bool:
        if text.lower() not in (yes, no):
            raise MisuseError(f"{name} must be {yes} or {no}, not {text!r}")
        return text.lower() == yes

    return chosen


# ── offsets ──────────────────────────────────────────────────────────────────────────────

# How far a query has read, as JSON; the same position always gives the same text, because Spark
# compares offsets as text. Each tick is the first one not yet read:
#
#     {"filter": "5f70…", "p": {"B1.1": 1793…, "B2.1": 1793…}, "v": 1}

VERSION: Final = 1
MARK_CHARS: Final = 16

Vector = dict[str, int]
"""By pubend, the first tick that has not been read."""


def mark_of(filter: Filter | None) -> str:
    """A fingerprint of the filter's canonical text."""
    return "" if filter is None else sha256(str(filter).encode()).hexdigest()[:MARK_CHARS]


def offset_at(vector: Vector, mark: str) -> dict[str, Any]:
    return {"filter": mark, "p": {name: vector[name] for name in sorted(vector)}, "v": VERSION}


def vector_at(offset: dict[str, Any], mark: str) -> Vector:
    """The vector in an offset; raises `MisuseError` if it is of another filter or version."""
    if offset.get("v") != VERSION:
        raise MisuseError(
            f"the checkpoint has offsets of version {offset.get('v')}, but this release reads "
            f"version {VERSION}; use the release that wrote it, or start a new checkpoint"
        )
    if offset["filter"] != mark:
        raise MisuseError(
            "the filter of this query differs from that of its checkpoint, so earlier events were "
            "selected by another filter; restore that filter, or start a new checkpoint"
        )
    return dict(offset["p"])
