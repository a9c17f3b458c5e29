"""Printing: for people on a console, for programs as one JSON value per line, errors as one clear
line with a hint; and exit statuses.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from motet import errors

UNBOUNDED_COLUMNS = 200
"""The width of a table without a terminal: piped output is not squeezed."""


def out() -> Console:
    """For results. Made each time, so that a redirected `sys.stdout` is respected."""
    return _console(stderr=False)


def err() -> Console:
    """For progress, remarks and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNBOUNDED_COLUMNS
    return Console(file=stream, width=width, highlight=False, emoji=False)


def say(text: str) -> None:
    """Print one line for people, without markup, and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_json(value: Any) -> None:
    """Print one JSON value on one line, and flush it for a reader at the other end of a pipe."""
    say(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str))


def remark(text: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """A plain table; the columns in `right` hold numbers."""
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return made


# ── errors and exit statuses ─────────────────────────────────────────────────────────────

FINE = 0
FAILED = 1
MISUSE = 2
INTERRUPTED = 130
QUOTES = "'\""


class Misuse(errors.MisuseError):
    """The command was called wrongly; `hint` says what to do instead."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


class CommandFailed(errors.MotetError):
    """The command could not do its work."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


_debugging: list[bool] = [False]


def debugging(wanted: bool | None = None) -> bool:
    """Whether the current command was called with `--debug`; sets it if `wanted` is given."""
    if wanted is not None:
        _debugging[:] = [wanted]
    return _debugging[0]


_COMMAND = re.compile(r"`motet [^`]+`")
_ADVICE = re.compile(r"start one with `|check that ")
"""Texts that say themselves what to start."""

HINTS: tuple[tuple[type[errors.MotetError], str], ...] = (
    (errors.FilterError, "filters look like: process = 'p1' and step between 1 and 9"),
    (errors.TopologyError, "`motet up --help` shows what a topology file looks like"),
    (errors.AddressError, "addresses look like motet://127.0.0.1:7701; each needs a free port"),
    (errors.NotAdvertised, "advertise a space that holds the event: --advertise FILTER"),
    (errors.Disconnected, "is the overlay running? `motet up` starts one, `motet status` shows it"),
    (errors.UnknownClient, "connect that client first, or correct its id"),
    (errors.Fenced, "choose another --client; an id is one client in the whole overlay"),
    (errors.NotEffective, "`motet status` shows which brokers and links are down"),
    (errors.VersionError, "use the same release of motet on both sides"),
    (errors.InvariantError, "this is a bug in motet; please report it with the output of --debug"),
)
"""Hints for errors without a hint of their own; the first match counts."""


OPTIONS = {
    "best_effort": "--best-effort",
    "client_id": "--client",
    "columns": "--columns",
    "durable": "--durable",
    "forget": "--forget",
    "keep": "--keep",
    "limit": "--limit",
    "order": "--order",
    "since": "--since",
    "upto": "--upto",
}
"""The command-line options for keywords of the Python client."""
_KEYWORD = re.compile(r"`([a-z_]+)(?:=([^`]+))?`")
"""How texts of errors name keywords: `durable=True`, `keep`."""


def in_options(text: str) -> str:
    """An error text written for applications, with the names of the command line's options."""

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
    """Print the error, and return its exit status."""
    # A filter is quoted as it was written.
    text = str(error) if isinstance(error, errors.FilterError) else in_options(str(error))
    complain(text, hint_for(error))
    for note in getattr(error, "__notes__", ()):
        remark(note)
    return MISUSE if isinstance(error, errors.MisuseError) else FAILED


def hint_for(error: Exception) -> str:
    """A hint that the error does not contain already."""
    own: str = getattr(error, "hint", "")
    if not own and _ADVICE.search(str(error)):
        return ""
    hint = own or next((text for kind, text in HINTS if isinstance(error, kind)), "")
    return "" if any(each in str(error) for each in _COMMAND.findall(hint)) else hint


def go_silently() -> None:
    """The reader of our output has gone: no error, and flushing must not make it one."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
