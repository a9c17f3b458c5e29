"""What applications hand over, checked where the mistake was made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from motet.errors import MisuseError
from motet.model.limits import MAX_KEEP_S
from motet.model.ticks import LAST_TICK, TICKS_PER_S
from motet.model.values import show_timestamp

MAX_REASON_CHARS = 400
"""Of why a transaction is aborted, or an invitation refused: it is told to everybody in it."""
MAX_TX_CHARS = 1024
SHOWN_CHARS = 60
Since = str | datetime | Mapping[str, int]
MAX_NAME_CHARS = 1024
CLOCKS_DIFFER = timedelta(seconds=1)
"""The time of an event is that of its broker, whose clock may be a little ahead of ours."""


def checked(wait: str, timeout: float) -> tuple[bool, float]:
    if wait not in ("overlay", "local"):
        raise MisuseError(f"wait is 'overlay' or 'local', not {wait!r}")
    return wait == "overlay", checked_time(timeout)


def checked_time(timeout: float) -> float:
    if not is_time(timeout) or not 0 <= timeout < float("inf"):
        raise MisuseError(f"timeout is a number of seconds, 0 or more, not {shown(timeout)}")
    try:
        return float(timeout)
    except OverflowError:
        raise MisuseError("timeout is a number of seconds that fits into a float") from None


def is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def checked_keep(durable: bool, keep_s: float, client_id: str | None) -> float:
    """How long a session is to be kept; 0 if it is not durable."""
    if not durable:
        return 0.0
    if client_id is None:
        raise MisuseError("a durable client needs a `client_id`, or nobody would find it again")
    if not is_time(keep_s) or not 0 < keep_s <= MAX_KEEP_S:
        raise MisuseError(f"`keep_s` is above 0 and at most {MAX_KEEP_S:g} seconds, not {keep_s!r}")
    return float(keep_s)


def shown(value: object) -> str:
    """What somebody has given us, short enough for the text of an error."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def is_text(value: object) -> bool:
    """Whether it is text that can be sent: half a surrogate pair cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_reason(reason: str) -> str:
    """Why a transaction is aborted: as much of it as somebody would read."""
    if not isinstance(reason, str):
        raise MisuseError(f"a reason is text, not {shown(reason)}")
    return cut(reason)


def reason_of(problem: BaseException) -> str:
    """Why a transaction is aborted, if this was raised in it."""
    kind = type(problem).__name__
    try:
        text = str(problem)
    except Exception:  # whoever wrote it has made a second mistake
        text = ""
    return cut(f"{kind}: {text}" if text else kind)


def cut(text: str) -> str:
    text = text if len(text) <= MAX_REASON_CHARS else f"{text[:MAX_REASON_CHARS]}…"
    return text.encode(errors="replace").decode()


def checked_tx(name: str) -> str:
    if not is_text(name) or not 0 < len(name) <= MAX_TX_CHARS:
        raise MisuseError(f"{shown(name)} is not the name of a transaction: tx.id has it")
    return name


def checked_cursors(cursors: Mapping[str, int] | None) -> dict[str, int] | None:
    if cursors is None:
        return None
    if not isinstance(cursors, Mapping):
        raise MisuseError(f"cursors map pubends to ticks, not {cursors!r}")
    for pubend, tick in cursors.items():
        if not isinstance(pubend, str) or not pubend:
            raise MisuseError(f"cursors are by pubend, like 'B1.7'; {pubend!r} is none")
        if type(tick) is not int or not 0 <= tick <= LAST_TICK:
            raise MisuseError(f"the cursor of {pubend} is a tick, a whole number; not {tick!r}")
    return dict(cursors)


def checked_name(name: str | None) -> str:
    if name is None:
        return ""
    if not is_text(name) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise MisuseError(f"a name is text of 1 to {MAX_NAME_CHARS} characters, not {shown(name)}")
    return name


def check_past(since: datetime) -> None:
    """What is yet to come cannot be asked for."""
    if since > datetime.now(UTC) + CLOCKS_DIFFER:
        raise MisuseError(
            f"`since` lies in the future: {show_timestamp(since.astimezone(UTC))}; give a time "
            "that has passed, or leave it out"
        )


def reach_of(since: Since | None, cursors: Mapping[str, int] | None) -> dict[str, int] | None:
    """How far back a subscription reaches, by pubend; None if nothing was said of it."""
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
