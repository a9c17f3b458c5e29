"""How anything is printed: for people on a console, for programs as one JSON value per line."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

UNBOUNDED_COLUMNS = 200
"""The width of a table where no terminal says otherwise: piped output is not squeezed."""


def out() -> Console:
    """Results. Made anew each time, so that whoever redirects `sys.stdout` is obeyed."""
    return _console(stderr=False)


def err() -> Console:
    """Progress, remarks and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNBOUNDED_COLUMNS
    return Console(file=stream, width=width, highlight=False, emoji=False)


def say(text: str) -> None:
    """One line for people, markup not interpreted, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_json(value: Any) -> None:
    """One JSON value on one line, at once: a reader at the other end of a pipe waits for it."""
    say(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str))


def remark(text: str) -> None:
    """One line beside the results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """A plain table; the columns in `right` hold numbers."""
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return made
