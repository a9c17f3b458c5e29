"""Checks of the arguments that applications pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from motet.errors import MisuseError, MotetError
from motet.model.ids import LAST_TICK, TICKS_PER_S
from motet.model.limits import MAX_BROKER_CHARS, MAX_KEEP_S
from motet.model.values import show_timestamp
from motet.runtime.codec import encode

MAX_REASON_CHARS = 400
"""Of the reason for an abort or a refusal, which is sent to every participant."""
MAX_TX_CHARS = 1024
SHOWN_CHARS = 60
Since = str | datetime | Mapping[str, int]
MAX_NAME_CHARS = 1024
KEEP_S = 7 * 86_400.0
"""How long a durable session is kept by default."""
CLOCKS_DIFFER = timedelta(seconds=1)
"""An event has its broker's time, and that clock may be a little ahead of ours."""


def checked(wait: str, timeout: float) -> tuple[bool, float]:
    if wait not in ("overlay", "local"):
        raise MisuseError(f"wait is 'overlay' or 'local', not {wait!r}")
    return wait == "overlay", checked_time(timeout)


def checked_time(timeout: float, what: str = "timeout") -> float:
    if not is_time(timeout) or not 0 <= timeout < float("inf"):
        raise MisuseError(f"{what} is a number of seconds, 0 or more, not {shown(timeout)}")
    try:
        return float(timeout)
    except OverflowError:
        raise MisuseError(f"{what} is a number of seconds that fits into a float") from None


def checked_wait(timeout: float | None, what: str = "timeout") -> float | None:
    """How long a caller waits; None, or infinity, is without limit."""
    if timeout is None or (isinstance(timeout, float) and timeout == float("inf")):
        return None
    return checked_time(timeout, what)


def checked_target(to: str) -> str:
    """The name of a broker to move to."""
    if not isinstance(to, str) or not to:
        raise MisuseError(f"a client moves to a broker, given by its name, not to {shown(to)}")
    if len(to) > MAX_BROKER_CHARS:  # the broker would end the session for a frame of any size
        raise MisuseError(
            f"the name of a broker has at most {MAX_BROKER_CHARS} characters; {shown(to)} has "
            f"{len(to):,}"
        )
    return to


def check_callable(what: str, value: object) -> None:
    if value is not None and not callable(value):
        raise MisuseError(
            f"{what} must be callable; an object of type {type(value).__name__} is not"
        )


def checked_flag(what: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise MisuseError(f"`{what}` is True or False, not {shown(value)}; give one of them")
    return value


def check_iterable(verb: str, events: object) -> None:
    if not isinstance(events, Iterable):
        raise MisuseError(f"{verb} takes an iterable of events, like a list, not {shown(events)}")


def is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked_keep(durable: bool, keep: float | None, client_id: str | None) -> float:
    """How long a session is to be kept; 0 if it is not durable."""
    if not checked_flag("durable", durable):
        if keep is not None:
            raise MisuseError(
                "`keep` applies only to a durable session; add `durable=True`, or omit `keep`"
            )
        return 0.0
    if client_id is None:
        raise MisuseError(
            "a durable client needs a `client_id`, with which its next process finds the session"
        )
    if keep is None:
        return KEEP_S
    if not is_time(keep) or not 0 < keep <= MAX_KEEP_S:
        raise MisuseError(f"`keep` is above 0 and at most {MAX_KEEP_S:g} seconds, not {keep!r}")
    return float(keep)


def shown(value: object) -> str:
    """The representation of a value, short enough for the text of an error."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def is_text(value: object) -> bool:
    """Whether it is text that can be sent: a lone surrogate cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_reason(reason: str) -> str:
    """The reason for an abort, cut to a readable length."""
    if not isinstance(reason, str):
        raise MisuseError(f"a reason is text, not {shown(reason)}")
    return cut(reason)


def reason_of(problem: BaseException) -> str:
    """The reason for an abort that this exception causes."""
    kind = type(problem).__name__
    try:
        text = str(problem)
    except Exception:  # the exception's `__str__` fails, too
        text = ""
    return cut(f"{kind}: {text}" if text else kind)


def cut(text: str) -> str:
    text = text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}…"
    return text.encode(errors="replace").decode()


def length_sent(what: Any, refusal: str, error: type[MotetError] = MisuseError) -> int:
    """The encoded size in bytes. Checked before the request is numbered: a numbered request that
    cannot be sent would block all others."""
    try:
        return len(encode(what))
    except Exception as problem:
        raise error(f"{refusal}: {problem}") from problem


def checked_tx(name: str) -> str:
    if not is_text(name) or not 0 < len(name) <= MAX_TX_CHARS:
        raise MisuseError(f"{shown(name)} is not the id of a transaction; use tx.id")
    return name


def checked_cursors(cursors: Mapping[str, int] | None) -> dict[str, int] | None:
    if cursors is None:
        return None
    if not isinstance(cursors, Mapping):
        raise MisuseError(f"cursors map pubends to ticks, not {cursors!r}")
    for pubend, tick in cursors.items():
        if not isinstance(pubend, str) or not pubend:
            raise MisuseError(f"the keys of cursors are pubends, like 'B1.7', not {pubend!r}")
        if type(tick) is not int or not 0 <= tick <= LAST_TICK:
            raise MisuseError(f"the cursor of {pubend} is a tick, a whole number, not {tick!r}")
    return dict(cursors)


def checked_name(name: str | None) -> str:
    if name is None:
        return ""
    if not is_text(name) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise MisuseError(f"a name is text of 1 to {MAX_NAME_CHARS} characters, not {shown(name)}")
    return name


def check_past(since: datetime) -> None:
    """Reject a `since` in the future."""
    if since > datetime.now(UTC) + CLOCKS_DIFFER:
        try:
            text = show_timestamp(since.astimezone(UTC))
        except OverflowError:  # UTC is in the year 10000 already
            text = since.isoformat()
        raise MisuseError(f"`since` lies in the future: {text}; give an earlier time, or omit it")


def reach_of(since: Since | None, cursors: Mapping[str, int] | None) -> dict[str, int] | None:
    """The ticks, by pubend, after which a subscription starts; None if not specified."""
    if since is None:
        return dict(cursors) if cursors else None
    if isinstance(since, str):
        if since not in ("beginning", "now"):
            raise MisuseError(
                f"`since` is 'beginning', 'now', a datetime or cursors, not {since!r}"
            )
        return {"": 0} if since == "beginning" else {}
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise MisuseError("`since` needs a time zone, as in datetime.now(timezone.utc)")
        check_past(since)
        return {"": max(0, int(since.timestamp() * TICKS_PER_S))}
    return checked_cursors(since)
