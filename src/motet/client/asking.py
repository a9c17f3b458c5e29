"""What people ask of a log, checked and as the broker wants it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from motet.client.checks import check_past
from motet.client.log_batch import DEFAULT_COLUMNS
from motet.errors import MisuseError
from motet.model import Filter, as_filter
from motet.model.ticks import LAST_TICK, NO_LIMIT, TICKS_PER_S
from motet.protocol.reading.messages import EVENT, STREAM_COLUMNS, VALUE_KINDS, Wanted

ATTRIBUTE: Final = "attributes."
"""Before the name of an attribute that is called like a column of the stream."""

OnLoss = Literal["raise", "tell"]
Place = int | datetime | Mapping[str, int] | None
"""A tick; a time; the tick of each pubend; None for the end that there is."""


class Asked:
    """The arguments of a read, checked."""

    def __init__(
        self,
        since: Place,
        upto: Place,
        filter: Filter | str | None,
        columns: Sequence[str] | Mapping[str, str] | None,
        limit: int | None,
        starts: bool,
        on_loss: OnLoss,
    ) -> None:
        if on_loss not in ("raise", "tell"):
            raise MisuseError(f'on_loss is "raise" or "tell", not {on_loss!r}')
        if limit is not None and (type(limit) is not int or not 1 <= limit <= NO_LIMIT):
            raise MisuseError(f"a limit is a number of events, 1 to {NO_LIMIT}, not {limit!r}")
        for what, place in (("since", since), ("upto", upto)):
            _check_place(what, place)
        self.since = since
        self.upto = upto
        self.filter = None if filter is None else as_filter(filter)
        self.wanted = wanted_columns(columns, starts)
        self.left = NO_LIMIT if limit is None else limit
        self.kinds = (EVENT, "start") if starts else (EVENT,)
        self.on_loss = on_loss
        self.named = {name for each in (since, upto) if isinstance(each, Mapping) for name in each}
        """Pubends whose ticks were given one by one."""

    def check_named(self, known: Sequence[str]) -> None:
        for name in self.named:
            if name not in known:
                there = ", ".join(known)
                raise MisuseError(f"there is a tick for pubend {name!r}, but there is only {there}")


def wanted_columns(
    columns: Sequence[str] | Mapping[str, str] | None, starts: bool = False
) -> tuple[Wanted, ...]:
    """What people write, as the broker wants it."""
    if columns is None:
        names = STREAM_COLUMNS if starts else DEFAULT_COLUMNS
        return tuple(Wanted(name) for name in names)
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise MisuseError(f"columns is a list of names, not {columns!r}: write [{columns!r}]")
    if isinstance(columns, Mapping):
        pairs = list(columns.items())
    else:
        pairs = [_name_and_kind(each) for each in columns]
    if not pairs:
        raise MisuseError("no column is wanted; leave `columns` out to get those of the stream")
    return tuple(_wanted(name, kind) for name, kind in pairs)


def _name_and_kind(written: Any) -> tuple[Any, str]:
    if not isinstance(written, str):
        return written, ""
    name, colon, kind = written.partition(":")
    if colon and not kind:
        raise MisuseError(f"the kind of value is missing behind {written!r}")
    return name, kind


def _wanted(name: Any, kind: Any) -> Wanted:
    if not isinstance(name, str):
        raise MisuseError(f"a column is named by text, not by {name!r}")
    if not name:
        raise MisuseError("the name of a column is empty")
    if kind and kind not in VALUE_KINDS:
        raise MisuseError(
            f"{kind!r} is no kind of value for {name}; there are {', '.join(VALUE_KINDS)}"
        )
    if name in STREAM_COLUMNS:
        if kind:
            raise MisuseError(
                f"{name} is a column of the stream and has its kind; the attribute of that name "
                f"is {ATTRIBUTE}{name}"
            )
        return Wanted(name)
    return Wanted(name, name.removeprefix(ATTRIBUTE), kind)


def _check_place(what: str, place: Any) -> None:
    match place:
        case None:
            return
        case datetime():
            if place.tzinfo is None:
                raise MisuseError(f"`{what}` has no time zone; write datetime(…, tzinfo=UTC)")
            if what == "since":
                check_past(place)
            return
        case bool():
            pass
        case int() if _is_tick(place):
            return
        case Mapping() if all(_is_tick(tick) for tick in place.values()):
            return
    raise MisuseError(
        f"`{what}` is a tick, from 1 on and up to {LAST_TICK}, a time, or ticks by pubend, "
        f"not {place!r}"
    )


def _is_tick(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LAST_TICK


def tick_of(place: Place, pubend: str, otherwise: int) -> int:
    if isinstance(place, datetime):
        return max(int(place.timestamp() * TICKS_PER_S), 1)
    if isinstance(place, Mapping):
        return place.get(pubend, otherwise)
    return otherwise if place is None else place
