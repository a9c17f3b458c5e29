"""Exit statuses, and errors as one clear line with a hint."""

from __future__ import annotations

import contextlib
import os
import re
import sys

from motet import errors
from motet.cli.voice import remark

FINE = 0
FAILED = 1
MISUSE = 2
INTERRUPTED = 130
QUOTES = "'\""


class Misuse(errors.MisuseError):
    """The command was called in a way that cannot be; `hint` says what to do instead."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


class Failure(errors.MotetError):
    """The command could not do its work."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


_debugging: list[bool] = [False]


def debugging(wanted: bool | None = None) -> bool:
    """Whether the command that runs was called with `--debug`; or say so."""
    if wanted is not None:
        _debugging[:] = [wanted]
    return _debugging[0]


HINTS: tuple[tuple[type[errors.MotetError], str], ...] = (
    (errors.FilterError, "filters look like: process = 'p1' and step between 1 and 9"),
    (errors.TopologyError, "`motet up --help` shows what a topology file looks like"),
    (errors.AddressError, "addresses look like motet://127.0.0.1:7701; each needs a free port"),
    (errors.NotAdvertised, "advertise a space that holds the event: --advertise FILTER"),
    (errors.Disconnected, "is the overlay running? `motet up` starts one, `motet status` shows it"),
    (errors.Fenced, "choose another --client; an id is one client in the whole overlay"),
    (errors.NotEffective, "`motet status` shows which brokers and links are down"),
    (errors.VersionError, "use the same release of motet on both sides"),
    (errors.InvariantError, "this is a bug in motet; please report it with the output of --debug"),
)
"""What to say to errors that bring no hint of their own; the first that fits."""


OPTIONS = {
    "best_effort": "--best-effort",
    "client_id": "--client",
    "columns": "--columns",
    "durable": "--durable",
    "forget": "--forget",
    "keep_s": "--keep",
    "limit": "--limit",
    "order": "--order",
    "since": "--since",
    "upto": "--upto",
}
"""What keywords of the Python client are called on the command line."""
_KEYWORD = re.compile(r"`([a-z_]+)(?:=([^`]+))?`")
"""Texts of errors speak of keywords like this: `durable=True`, `keep_s`."""


def in_options(text: str) -> str:
    """The text of an error that was written for applications, as the command line calls things."""

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if name not in OPTIONS:
            return found[0]
        return OPTIONS[name] + ("" if value in (None, "True") else f" {value.strip(QUOTES)}")

    return _KEYWORD.sub(option, text)


def complain(problem: str, hint: str = "") -> None:
    remark(f"error: {problem}")
    if hint:
        remark(f"hint: {hint}")


def status_of(error: errors.MotetError) -> int:
    """Say what went wrong, and return the exit status that belongs to it."""
    # A filter is quoted as it was written.
    text = str(error) if isinstance(error, errors.FilterError) else in_options(str(error))
    complain(text, hint_for(error))
    for note in getattr(error, "__notes__", ()):
        remark(note)
    return MISUSE if isinstance(error, errors.MisuseError) else FAILED


def hint_for(error: Exception) -> str:
    own: str = getattr(error, "hint", "")
    return own or next((text for kind, text in HINTS if isinstance(error, kind)), "")


def go_silently() -> None:
    """Whoever read our output has gone: that is no error, and flushing must not make it one."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
